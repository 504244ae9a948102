"""`sidecar schema`: the JSON Schema of the workflow language, for editors."""

from __future__ import annotations

import argparse
import json

_EPILOG = """\
Save it, and let the first line of a workflow name it, so that editors
complete and check:

  sidecar schema > .swissarmyhammer/workflow.schema.json
  # yaml-language-server: $schema=../workflow.schema.json
"""


def main(arguments: list[str], project: str | None) -> int:
    """Print it. It is the same in every project."""
    del project
    argparse.ArgumentParser(
        prog="sidecar schema",
        description="Print the JSON Schema (2020-12) of workflow files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    from sidecar.model import workflow  # noqa: PLC0415 - pydantic, only for those who need it

    print(json.dumps(workflow.json_schema(), indent=2, ensure_ascii=False))
    return 0
