"""Makes the checkout's own environment in .venv: `bootstrap.py run` or `bootstrap.py dev`.

Called by scripts/environment when the stamp of a finished environment is missing or older than the locked
requirements. Several callers may arrive at once: the first one builds, the others wait for it.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = str(VENV / "bin" / "python")
LEVELS = ("run", "dev")  # dev contains run


def stamp(level: str) -> Path:
    return VENV / f".ready-{level}"


def fingerprint(level: str) -> str:
    """What a finished environment records: the place (scripts in it hold absolute paths) and its ingredients.

    Of pyproject.toml only what is installed: a changed lint rule is no reason to build anew.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = json.dumps([sys.version, project["project"], project["build-system"]])
    digest = hashlib.sha256(installed.encode() + (ROOT / "requirements" / f"{level}.txt").read_bytes())
    return f"{ROOT}\n{digest.hexdigest()}\n"


def is_ready(level: str) -> bool:
    try:
        return stamp(level).read_text() == fingerprint(level) and os.access(PYTHON, os.X_OK)
    except OSError:
        return False


def pip(*arguments: str) -> None:
    command = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\nsidecar: could not install its dependencies; the lines above are pip's own words.")


def build(level: str) -> None:
    print(f"sidecar: setting up {VENV.name}, once (a minute at most) …", file=sys.stderr, flush=True)
    # An environment that some level finished and that is still current only needs more packages.
    if not any(is_ready(other) for other in LEVELS):
        try:
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(VENV)
        except subprocess.CalledProcessError:
            sys.exit("sidecar: this Python cannot make virtual environments; on Debian: apt install python3-venv")
    # pip first: the pip that comes with Python writes console scripts that start slowly.
    pins = (ROOT / "requirements" / f"{level}.txt").read_text().replace("\\\n", "").splitlines()
    own = VENV / "pip.txt"
    own.write_text("\n".join(line for line in pins if line.startswith("pip==")))
    pip("install", "--require-hashes", "--requirement", str(own))
    # Up to Python 3.11 a new environment has setuptools, whose start-up hook every process would pay for.
    pip("uninstall", "--yes", "setuptools")
    pip("install", "--require-hashes", "--requirement", f"requirements/{level}.txt")
    pip("install", "--no-deps", "--no-build-isolation", "--editable", ".")
    # Written here and now: many machines forbid Python to write bytecode later (PYTHONDONTWRITEBYTECODE).
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(ROOT / "sidecar")], check=False)


def main(level: str) -> None:
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(level):
            build(level)
        for done in LEVELS[: LEVELS.index(level) + 1]:
            stamp(done).write_text(fingerprint(done))


if __name__ == "__main__":
    main(sys.argv[1])
