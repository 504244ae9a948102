"""`sidecar init`: a project's first settings, workflow and workspace, each with comments that explain it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.catalog import naming
from sidecar.cli.options import parser
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterator

OK = 0
_WORKSPACE = "first"
_NOTIFY = """\
# notify:
#   - type: desktop
#   - type: ntfy
#     url: https://ntfy.sh/a-topic-of-yours
#     events: [waiting, failed, completed]
#   - type: webhook  # Slack, Mattermost, Discord: the variable has the address
#     url: $SLACK_WEBHOOK_URL
#   - type: command
#     command: [sh, -c, 'echo "$SIDECAR_NOTIFY_TITLE" >> notices.txt']
#     events: [milestone]
#     every: 25  # iterations"""


def main(arguments: list[str], project_option: str | None) -> int:
    """Create what is missing; existing files are not changed."""
    parser("init").parse_args(arguments)
    root = layout.find_root(project_option, os.environ)
    if root == os.path.realpath(os.path.expanduser("~")):
        raise SidecarError(
            f"{root} is your home directory, which is never a project; change to a project, or use --project"
        )
    state = layout.state_directory(root)
    for path, text in _files(state):
        _print(root, path, made=_make(path, text))
    _workspace(project_option, root)
    sys.stdout.flush()
    print(_NEXT)
    return OK


_NEXT = f"""
What to try next:
  sidecar hello World              run the first workflow, .swissarmyhammer/workflows/hello.yaml
  sidecar doctor                   check which agents are installed and what works here
  sidecar iterate {_WORKSPACE}            let an agent work on the task, once you have written it into INSTRUCTIONS.md
  sidecar --help                   every command"""


def _files(state: str) -> Iterator[tuple[str, str]]:
    yield os.path.join(state, ".gitignore"), _template("gitignore")
    yield os.path.join(state, "config.yaml"), _settings()
    yield os.path.join(state, "workflows", "hello.yaml"), _template("workflows/hello.yaml")


def _template(name: str) -> str:
    with open(os.path.join(naming.builtin_directory("init"), name), encoding="utf-8") as file:
        return file.read()


def _settings() -> str:
    """Every setting there is, with what it is for and its default, as a comment."""
    import yaml  # noqa: PLC0415 - only for those who need it

    from sidecar.config import Settings  # noqa: PLC0415

    lines = [
        "# The settings of this project. They override ~/.config/sidecar/config.yaml; SIDECAR_* variables override"
    ]
    lines += ["# both. `sidecar config show` shows the values. Remove the `# ` to set one."]
    defaults = Settings.model_validate({}).model_dump(mode="json")
    for name, field in Settings.model_fields.items():
        lines += ["", f"# {field.description}"]
        value = yaml.safe_dump([defaults[name]], default_flow_style=True, width=1000).strip()[1:-1]
        lines += [_NOTIFY if name == "notify" else f"# {name}: {value}"]
    return "\n".join(lines) + "\n"


def _workspace(project_option: str | None, root: str) -> None:
    from sidecar import config  # noqa: PLC0415
    from sidecar.service import workspaces  # noqa: PLC0415

    target, made, kept = workspaces.init(config.open_project(project_option), _WORKSPACE)
    for name in (*made, *kept):
        _print(root, os.path.join(target.directory, name), made=name in made)


def _make(path: str, text: str) -> bool:
    """Create a file; False if it exists."""
    try:
        layout.make_directory(os.path.dirname(path))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        if os.path.isdir(os.path.dirname(path)):
            return False
        raise SidecarError(f"{os.path.dirname(path)} is not a directory") from None
    except OSError as error:
        raise SidecarError(f"cannot create {error.filename or path}: {error.strerror}") from None
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(text)
    return True


def _print(root: str, path: str, *, made: bool) -> None:
    print(f"{'made' if made else 'kept':<5} {os.path.relpath(path, root)}")
