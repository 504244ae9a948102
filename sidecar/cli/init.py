"""`sidecar init`: what a project begins with: settings, a first workflow, a first workspace, each explaining itself."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterator

OK = 0
_WORKSPACE = "first"
_WORKFLOW = """\
# A first workflow. `sidecar hello World` runs it, `sidecar flow run hello --dry-run World` only tells what it would do.
# While it counts, another terminal can say `touch .swissarmyhammer/.stop`; `sidecar resume RUN` then goes on.
description: Greet somebody, count to five, and tell how it went.

inputs:
  who:
    type: string
    required: true
    description: Whom to greet.
  pause:
    type: number
    default: 1
    description: Seconds between two counts.

# What the steps know. A computed field follows from others by itself.
default_state:
  raw: {count: 0, greeting: ""}
state_schema:
  raw: {count: number, greeting: string}
  computed:
    left:
      from: raw.count
      transform: 5 - input

steps:
  # A value in {{ }} can never become a part of the command, whatever it contains.
  - id: greet
    type: shell_command
    command: echo Hello, {{ inputs.who }}
    state_update:
      path: raw.greeting

  # `.stop` ends the run between two iterations; `.abort` at once.
  - id: counting
    type: while
    condition: "{{ left > 0 }}"
    max_iterations: 10
    body:
      - id: pause
        type: shell_command
        command: sleep {{ inputs.pause }}
      - id: count
        type: state_update
        path: raw.count
        operation: increment

  - id: done
    type: user_message
    message: "{{ greeting }}! I counted to {{ count }}."

  # An agent is a step like any other. Without `agent`, it is the setting default_agent.
  # - id: ask
  #   type: agent
  #   prompt: Say in one sentence what this project is for.
  #   state_update:
  #     path: raw.greeting
"""
_IGNORED = """\
# What sidecar keeps for itself stays out of the repository. What people write belongs into it.
*
!.gitignore
!config.yaml
!workflows/
!workflows/**
!agents/
!agents/**
!prompts/
!prompts/**
!workspaces/
!workspaces/**
.stop*
.abort*
"""
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
    """Make what is missing; what is there is never touched."""
    argparse.ArgumentParser(
        prog="sidecar init",
        description="Make a project's first settings, workflow and workspace below .swissarmyhammer/. "
        "What is there already stays as it is.",
    ).parse_args(arguments)
    root = layout.find_root(project_option, os.environ)
    if root == os.path.realpath(os.path.expanduser("~")):
        raise SidecarError(f"{root} is your home directory, which is never a project; go into one, or use --project")
    state = layout.state_directory(root)
    for path, text in _files(state):
        _tell(root, path, made=_make(path, text))
    _workspace(project_option, root)
    sys.stdout.flush()
    print(_NEXT)
    return OK


_NEXT = f"""
What now:
  sidecar hello World              run the first workflow; it is in .swissarmyhammer/workflows/hello.yaml
  sidecar doctor                   see which agents are found here, and what is in force
  sidecar iterate {_WORKSPACE}            once INSTRUCTIONS.md there says what is wanted: let an agent work on it
  sidecar --help                   everything else"""


def _files(state: str) -> Iterator[tuple[str, str]]:
    yield os.path.join(state, ".gitignore"), _IGNORED
    yield os.path.join(state, "config.yaml"), _settings()
    yield os.path.join(state, "workflows", "hello.yaml"), _WORKFLOW


def _settings() -> str:
    """Every setting there is, with what it is for and its default, as a comment."""
    import yaml  # noqa: PLC0415 - only for those who need it

    from sidecar.config import Settings  # noqa: PLC0415

    lines = ["# The settings of this project. They beat those in ~/.config/sidecar/config.yaml; SIDECAR_* variables"]
    lines += ["# beat both, and `sidecar config show` tells which one holds. Take the `# ` away to set one."]
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
        _tell(root, os.path.join(target.directory, name), made=name in made)


def _make(path: str, text: str) -> bool:
    """Whether it was made: never over something that is there."""
    try:
        layout.make_directory(os.path.dirname(path))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        if os.path.isdir(os.path.dirname(path)):
            return False
        raise SidecarError(f"{os.path.dirname(path)} is no directory, and has to be one") from None
    except OSError as error:
        raise SidecarError(f"cannot make {error.filename or path}: {error.strerror}") from None
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(text)
    return True


def _tell(root: str, path: str, *, made: bool) -> None:
    print(f"{'made' if made else 'kept':<5} {os.path.relpath(path, root)}")
