"""`sidecar support-bundle`: what a bug report needs, in one file, without secrets."""

from __future__ import annotations

import argparse
import os
import time

from sidecar import layout
from sidecar.errors import SidecarError

OK = 0


def main(arguments: list[str], project: str | None) -> int:
    """Write the archive; nothing else is changed."""
    parser = argparse.ArgumentParser(
        prog="sidecar support-bundle",
        description="Pack versions, what `doctor` says, the settings, a summary of the journal and the last logs of "
        "runs into a .tar.gz. Secrets are masked; the journal itself, prompts, workflows and what agents printed "
        "are not in it.",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (default: here, by the time)")
    options = parser.parse_args(arguments)
    import anyio  # noqa: PLC0415 - `--help` needs none of this

    from sidecar.service import bundle  # noqa: PLC0415

    path = options.output or time.strftime("sidecar-support-%Y%m%d-%H%M%S.tar.gz")
    data = anyio.run(bundle.pack, layout.find_root(project, os.environ), dict(os.environ))
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as opened:
            opened.write(data)
    except OSError as error:
        raise SidecarError(f"cannot write {path}: {error.strerror}") from None
    print(f"{path}: look through it before you send it; its README.txt says what is in there")
    return OK
