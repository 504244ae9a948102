"""`sidecar completion SHELL`: the script that teaches a shell to complete sidecar's words."""

from __future__ import annotations

import argparse
import os

OK = 0
_FILES = {"bash": "sidecar.bash", "zsh": "_sidecar", "fish": "sidecar.fish"}
_HOW = """\
To have it in every new shell:

  bash   echo 'eval "$(sidecar completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(sidecar completion zsh)"' >> ~/.zshrc  (behind compinit)
  fish   sidecar completion fish > ~/.config/fish/completions/sidecar.fish
"""


def main(arguments: list[str], _project: str | None) -> int:
    """Print it."""
    parser = argparse.ArgumentParser(
        prog="sidecar completion",
        description="Print a script that completes commands, workflows, agents, prompts,\nworkspaces and runs.",
        epilog=_HOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=_FILES)
    options = parser.parse_args(arguments)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "completions", _FILES[options.shell])
    with open(path, encoding="utf-8") as file:
        print(file.read(), end="")
    return OK
