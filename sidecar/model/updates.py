"""Writes into the run's state, as steps declare them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from sidecar.model.language import Path, Role, Strictly

Operation = Literal["set", "append", "increment", "merge"]
OPERATION_TEXT = "set, append to a list, increment a number, merge into an object."
VALUE_IS_MISSING = "`value` is missing: only `increment` does without, and then adds 1"
# The same rule for JSON Schema.
NEEDS_VALUE: dict[str, JsonValue] = {
    "anyOf": [
        {"required": ["value"]},
        {"required": ["operation"], "properties": {"operation": {"const": "increment"}}},
    ]
}


class Update(Strictly):
    """One write of a step's result, or of a value that it leads to."""

    path: Annotated[Path, Role.PATH] = Field(description="Where to: below `raw.` or `state.`.")
    operation: Operation = Field(default="set", description=OPERATION_TEXT)
    value: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="What to write. Without it: the step's result; for `increment` 1."
    )

    @property
    def has_value(self) -> bool:
        """Whether the author gave a value. `null` is one."""
        return "value" in self.model_fields_set


class FullUpdate(Update):
    """A write that stands alone: there is no result that could be meant."""

    model_config = ConfigDict(json_schema_extra=NEEDS_VALUE)

    @model_validator(mode="after")
    def _says_what(self) -> FullUpdate:
        if self.operation != "increment" and not self.has_value:
            raise ValueError(VALUE_IS_MISSING)
        return self
