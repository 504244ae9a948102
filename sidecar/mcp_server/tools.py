"""The table of tools (name, schema, effect, use case), the check of arguments, and the calls.

Here, and nowhere else, an error becomes a tool error.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from mcp.types import CallToolResult, InputRequiredResult, ListToolsResult, TextContent, ToolAnnotations
from mcp.types import Tool as Listed

from sidecar.errors import REPORTED, InputError, NotFound, SidecarError
from sidecar.mcp_server import offers
from sidecar.mcp_server.offers import Kind
from sidecar.model.events import Status
from sidecar.model.parameters import is_of_type, unknown
from sidecar.service.owners import in_thread
from sidecar.service.status import as_json

if TYPE_CHECKING:
    from mcp.types import CallToolRequestParams

    from sidecar.mcp_server.calls import RunCalls, Site
    from sidecar.mcp_server.connections import Context

Json = dict[str, Any]
Schema = dict[str, Any]
logger = logging.getLogger("sidecar.mcp")
# A list of tools stays below 32 KiB whatever a project has: beyond this many characters, names are only in `list`.
_MOST_NAME_CHARACTERS = 8192
MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
_ARTICLES = {"string": "a string", "integer": "an integer", "array": "an array", "object": "an object"}
_LONGEST_SHOWN = 60
_BAD_ENDS = ("failed", "aborted")


# --- schemas, as short as they can be: agents pay for them in every conversation


_NOT_BLANK = r"\S"
STATUSES = list(get_args(Status))


def text(description: str = "", *, blank: bool = True, choices: list[str] | None = None) -> Schema:
    """A string; not `blank`: with something in it."""
    return {
        "type": "string",
        **({"description": description} if description else {}),
        **({} if blank else {"pattern": _NOT_BLANK}),
        **({"enum": choices} if choices else {}),
    }


def flag(description: str) -> Schema:
    """A boolean that is false unless it is given."""
    return {"type": "boolean", "default": False, "description": description}


def record(description: str = "") -> Schema:
    """An object whose keys are the caller's own affair."""
    return {"type": "object", **({"description": description} if description else {})}


def anything(description: str) -> Schema:
    """Any JSON value."""
    return {"description": description}


def many(items: Schema, description: str = "", *, empty: bool = True) -> Schema:
    """An array."""
    return {
        "type": "array",
        "items": items,
        **({"description": description} if description else {}),
        **({} if empty else {"minItems": 1}),
    }


def takes(required: dict[str, Schema] | None = None, optional: dict[str, Schema] | None = None) -> Schema:
    """The arguments of a tool: these and no others."""
    return {
        "type": "object",
        "properties": {**(required or {}), **(optional or {})},
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def gives(required: dict[str, Schema] | None = None, optional: dict[str, Schema] | None = None) -> Schema:
    """The result of a tool: at least these. More is allowed, so that a newer server does not break an older client."""
    return {
        "type": "object",
        **({"properties": {**(required or {}), **(optional or {})}} if required or optional else {}),
        **({"required": list(required)} if required else {}),
    }


def or_null(schema: Schema) -> Schema:
    """What may also be null."""
    return {**schema, "type": [schema["type"], "null"]}


OBJECT: Schema = {"type": "object"}
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
STRINGS: Schema = {"type": "array", "items": STRING}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
RUN_ID = text("Id of the run.", blank=False)


# --- the table


Effect = Literal["reads", "changes", "repeatable", "ends"]
_ANNOTATIONS: dict[Effect, ToolAnnotations] = {
    "reads": ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "changes": ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False),
    "repeatable": ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
    "ends": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False),
}
# What a run does is up to its workflow and its agents: anything.
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `effect`: what a call does to the world. `use_case`: the method of the service that does it, with the
    arguments of the call, and with the run whose agent asks where it `knows_asker`. `runs`: it starts something of that
    kind instead."""

    name: str
    description: str
    input: Schema
    output: Schema
    effect: Effect | None = None
    use_case: str | None = None
    knows_asker: bool = False
    runs: Kind | None = None

    def listed(self, schema: Schema | None = None) -> Listed:
        """The tool as clients see it; `schema`: the input schema with the names that there are now."""
        return Listed(
            name=self.name,
            description=self.description,
            input_schema=schema or self.input,
            output_schema=self.output,
            annotations=_RUNS if self.effect is None else _ANNOTATIONS[self.effect],
        )


FORMATS = ["json", "yaml", "table"]
_RUN_ID = text("The run (a workflow_id); without it, the run that asks, else see the description.", blank=False)
_WORKSPACE = text("Name of a workspace.", blank=False)
_SIGNALLED = gives({"success": BOOLEAN}, {"path": STRING, "signal_id": STRING, "message": STRING})


def _starts(noun: str) -> Schema:
    return takes(
        {f"{noun}_name": text(f"Which {noun}; 'list' lists them.")},
        {
            "parameters": record("Its parameters."),
            "format": {**text("Of the list.", choices=FORMATS), "default": "json"},
            "verbose": flag("List with more detail."),
            "interactive": flag("Ask the person here when the run has a question."),
            "dry_run": flag("Give the plan, run nothing."),
            "quiet": flag("No progress."),
            "workspace": _WORKSPACE,
            "detach": flag("Return once it is started; workflow_status finds it."),
        },
    )


def _run(listed: str) -> Schema:
    """The list, the plan, or the run: none of their keys is in all of them."""
    return gives(
        None,
        {
            listed: OBJECTS,
            "problems": STRINGS,
            "run_id": STRING,
            "status": text(choices=STATUSES),
            "reason": or_null(STRING),
            "state": OBJECT,
            "messages": many(anything("")),
        },
    )


SIGNALS = (
    Tool(
        "abort",
        "End work now: every agent and command of the run that asks, of a run, a workspace, else of the whole "
        "project: give run_id for a run that you drive. Use it when going on would do harm or cannot succeed.",
        takes(
            {"reason": text("Why; people read it.", blank=False)},
            {"run_id": _RUN_ID, "workspace": _WORKSPACE},
        ),
        _SIGNALLED,
        "ends",
        "abort",
        knows_asker=True,
    ),
    Tool(
        "stop",
        "Let the current iteration finish, then end the run; it can be resumed. "
        "Of the run that asks, a run, a workspace, else of the whole project: give run_id for a run that you drive.",
        takes(
            None,
            {
                "workspace": _WORKSPACE,
                "run_id": _RUN_ID,
                "reason": text("Why."),
                "cancel": flag("Take an earlier stop back."),
            },
        ),
        _SIGNALLED,
        "repeatable",
        "stop",
        knows_asker=True,
    ),
    Tool(
        "stage_gate",
        "Submit a stage's output or a plan for approval. The run pauses: end your turn after this call.",
        takes(
            {"stage": text("Name of the stage.", blank=False), "output": text("What a person has to see.")},
            {"kind": text(choices=["stage", "plan"]), "run_id": _RUN_ID},
        ),
        gives({"allowed": BOOLEAN, "pause_required": BOOLEAN}),
        "changes",
        "stage_gate",
        knows_asker=True,
    ),
)
RUNS = (
    Tool(
        "flow",
        "Run a workflow to its end, or list the workflows with flow_name 'list'.",
        _starts("flow"),
        _run("workflows"),
        runs="flow",
    ),
    Tool(
        "agent",
        "Run a coding agent, supervised, or list the agents with agent_name 'list'.",
        _starts("agent"),
        _run("agents"),
        runs="agent",
    ),
    Tool(
        "prompt",
        "Give a stored prompt to the default agent, or list the prompts with prompt_name 'list'.",
        _starts("prompt"),
        _run("prompts"),
        runs="prompt",
    ),
)

_WORKFLOW = text("Name of the workflow, such as standards:fix.", blank=False)
_TASK = text("Id of the task, for a sub-agent of a parallel step.")
_CONTEXT = record("What a sub-agent was given; its task_id counts as task_id.")
_UPDATE = takes(
    {"path": text("Begins with raw. or state.")},
    {
        "value": anything("Required, but for increment, which without it adds 1."),
        "operation": text(choices=["set", "append", "increment", "merge"]),
    },
)
_INPUTS = record("Values of the workflow's inputs.")


DRIVING = (
    Tool(
        "workflow_get_info",
        "Describe a workflow: its inputs, version and file.",
        takes({"workflow": _WORKFLOW}),
        gives({"name": STRING, "inputs": OBJECT}, {"description": STRING, "version": STRING, "found_at": STRING}),
        "reads",
        "workflow_info",
    ),
    Tool(
        "workflow_start",
        "Start a workflow that you will carry out step by step with workflow_get_next_step. "
        "To have the sidecar carry it out, call flow.",
        takes({"workflow": _WORKFLOW}, {"inputs": _INPUTS, "workspace": text("Workspace to bind the run to.")}),
        gives({"workflow_id": STRING, "state": OBJECT}),
        "changes",
        "start",
    ),
    Tool(
        "workflow_get_next_step",
        "The next atomic step to do. Until it is completed, the same step comes again. At the end, step is null.",
        takes({"workflow_id": RUN_ID}, {"task_id": _TASK, "sub_agent_context": _CONTEXT}),
        gives({"step": or_null(OBJECT)}, {"status": STRING, "reason": or_null(STRING)}),
        "repeatable",
        "next_step",
    ),
    Tool(
        "workflow_step_complete",
        "Say that a step is done, with its result. The step's own state_update is applied. Twice is harmless.",
        takes(
            {"workflow_id": RUN_ID, "step_id": text("Id from workflow_get_next_step.", blank=False)},
            {
                "status": text(choices=["success", "failed"]),
                "result": anything("What the step produced."),
                "error": text("What went wrong, with status failed."),
                "attempt": {"type": "integer", "description": "The step's attempt, as it was handed out."},
                "task_id": _TASK,
                "sub_agent_context": _CONTEXT,
            },
        ),
        gives({"success": BOOLEAN}),
        "repeatable",
        "step_complete",
    ),
    Tool(
        "workflow_resume",
        "Go on with a run that was stopped, paused, failed, aborted or interrupted, from its last boundary. "
        "You drive it from then on, unless driver is server or it was paused.",
        takes(
            {"workflow_id": RUN_ID},
            {
                "feedback": text("What a person says, for the next prompt. Alone, it sends what was submitted back."),
                "answer": anything("The answer to the question that the run waits for."),
                "approve": flag("A person approves what was submitted; not for the agent that did."),
                "driver": text("Who does its steps from now on: you, or the sidecar.", choices=["agent", "server"]),
            },
        ),
        gives({"workflow_id": STRING}, {"state": OBJECT, "last_checkpoint": or_null(OBJECT)}),
        "changes",
        "resume",
        knows_asker=True,
    ),
    Tool(
        "workflow_load_definition",
        "A workflow's whole definition, as it was read.",
        takes({"workflow": _WORKFLOW}),
        gives({"name": STRING, "steps": OBJECTS}, {"state_schema": OBJECT, "loaded_from": STRING}),
        "reads",
        "load_definition",
    ),
    Tool(
        "workflow_checkpoint",
        "Save the position of a run, for instance before your context is full.",
        takes({"workflow_id": RUN_ID}, {"step_id": STRING, "reason": STRING}),
        gives({"checkpoint_id": STRING}, {"state_path": STRING}),
        "repeatable",
        "checkpoint",
    ),
    Tool(
        "workflow_complete",
        "End a run that you carried out; gives its final state.",
        takes({"workflow_id": RUN_ID}, {"status": text(choices=["success", "failed", "cancelled"])}),
        gives({"success": BOOLEAN}, {"final_state": OBJECT}),
        "repeatable",
        "complete",
    ),
    Tool(
        "workflow_list",
        "The workflows there are.",
        takes(None, {"include_global": {"type": "boolean", "default": True}}),
        gives({"workflows": OBJECTS}, {"problems": STRINGS}),
        "reads",
        "workflow_list",
    ),
    Tool(
        "workflow_status",
        "How runs stand, newest first; of one run, with workflow_id.",
        takes(None, {"workflow_id": RUN_ID}),
        gives(
            {"runs": many(gives({"run_id": STRING, "status": text(choices=STATUSES)}, {"workflow": STRING}))},
        ),
        "reads",
        "status",
    ),
)
STATE = (
    Tool(
        "workflow_state_read",
        "A run's state, flattened; only some paths, with paths.",
        takes({"workflow_id": RUN_ID}, {"paths": many(STRING)}),
        OBJECT,
        "reads",
        "state_read",
    ),
    Tool(
        "workflow_state_update",
        "Change a run's state in one transaction: all updates or none. Gives the computed fields that changed.",
        takes({"workflow_id": RUN_ID, "updates": many(_UPDATE, empty=False)}),
        gives({"success": BOOLEAN}),
        "changes",
        "state_update",
    ),
    Tool(
        "workflow_state_dependencies",
        "What a computed field depends on, and what depends on it.",
        takes({"workflow_id": RUN_ID, "field": STRING}),
        gives({"direct_deps": STRINGS, "all_deps": STRINGS, "dependents": STRINGS}),
        "reads",
        "state_dependencies",
    ),
)
DEBUGGING = (
    Tool(
        "workflow_trace_transformations",
        "How a run's computed fields were computed.",
        takes({"workflow_id": RUN_ID}, {"field": STRING, "include_timing": flag("With durations.")}),
        gives({"traces": OBJECTS}),
        "reads",
        "trace",
    ),
    Tool(
        "workflow_debug_info",
        "The position of a run, its steps so far, the size of its state, and what is slow.",
        takes({"workflow_id": RUN_ID}),
        gives({"current_step": or_null(STRING), "step_history": OBJECTS}),
        "reads",
        "debug_info",
    ),
    Tool(
        "workflow_test_transformation",
        "Try a JavaScript transformation on an input, without any effect.",
        takes(
            {"transform": text("The JavaScript.", blank=False), "input": anything("What `input` is.")},
            {"context": record("More names.")},
        ),
        gives({"success": BOOLEAN}, {"output": anything(""), "error": STRING, "execution_time_ms": NUMBER}),
        "reads",
        "test_transformation",
    ),
    Tool(
        "workflow_explain_plan",
        "What a workflow would do with these inputs, without running it.",
        takes({"workflow": _WORKFLOW}, {"inputs": _INPUTS}),
        gives({"steps": OBJECTS}, {"required_tools": STRINGS}),
        "reads",
        "explain_plan",
    ),
)

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*SIGNALS, *RUNS, *DRIVING, *STATE, *DEBUGGING)}
_RUN_NAMES = {tool.name for tool in RUNS}  # calls of these wait for a run
_ENDING_NAMES = {"abort", "stage_gate"}


# --- what clients see of it, and calls


def listed(site: Site) -> ListToolsResult:
    """Every tool, with the names that there are now."""
    return ListToolsResult(tools=[tool.listed(input_schema(site, tool.name)) for tool in TOOLS.values()])


def input_schema(site: Site, name: str) -> Schema | None:
    """The arguments of a tool; with every name that it can be called with, as long as they are few enough."""
    tool = TOOLS.get(name)
    if tool is None or tool.runs is None:
        return tool.input if tool else None
    try:
        names = [offers.LIST, *offers.tool_names(site.root, tool.runs)]
    except SidecarError:  # a directory that cannot be listed must not hide the tools; a call says what is wrong
        names = [offers.LIST]
    if sum(len(name) + 3 for name in names) * len(RUNS) > _MOST_NAME_CHARACTERS:
        return tool.input
    schema = copy.deepcopy(tool.input)
    schema["properties"][f"{tool.runs}_name"]["enum"] = names
    return schema


def declared_schema(name: str) -> Schema | None:
    """The arguments of a tool as far as no file says more."""
    tool = TOOLS.get(name)
    return tool.input if tool else None


def comes_before_an_end(site: Site, name: str) -> bool:
    """Whether the reply to such a call has to be out before an agent is ended. The agents of a run call through its own
    socket; elsewhere only a call that ends agents counts, so that no other client delays an abort."""
    name = name.replace(".", "_")
    return name in _ENDING_NAMES or (site.run_id is not None and name not in _RUN_NAMES)


async def call(
    site: Site, runs: RunCalls, context: Context, params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult:
    """Do what a call asks for. Whatever goes wrong is said in words: no stack trace, and never the server's end."""
    try:
        tool = TOOLS[_listed_name(params.name)]
        given = params.arguments or {}
        wrong = argument_problems(tool.input, given)
        if wrong:
            raise InputError(f"{tool.name}: {'; '.join(wrong)}")
        if tool.runs is not None:
            name = given[f"{tool.runs}_name"]
            if name == offers.LIST:
                return await in_thread(_list, site, tool.runs, given)
            outcome = await runs.call(tool.runs, given, context, params)
            return outcome if isinstance(outcome, InputRequiredResult) else _ended(name, outcome)
        use_case = getattr(site.service, str(tool.use_case))
        asker = {"asker": site.run_id} if tool.knows_asker else {}
        return _result(await use_case(**given, **asker))
    except REPORTED as error:
        return _failed(str(error))
    except Exception as error:
        logger.exception("tool %s", params.name[:100])
        return _failed(f"{params.name[:100]} failed inside the sidecar ({type(error).__name__}); see its log")


def _listed_name(name: str) -> str:
    """The listed name that a caller means: the seeds write dots for underscores. NotFound has the nearest."""
    listed_name = name.replace(".", "_")
    if listed_name in TOOLS:
        return listed_name
    raise NotFound(unknown(name[:100], TOOLS, "tool"))


def _list(site: Site, kind: Kind, given: dict[str, Any]) -> CallToolResult:
    found = offers.list_definitions(site.root, kind, verbose=given.get("verbose", False))
    return _result(found, offers.format_definitions(found, kind, given.get("format", "json")))


def _ended(name: str, outcome: Json) -> CallToolResult:
    """A run's end. One that failed is an error with all that is known of it."""
    result = _result(outcome)
    if outcome.get("status") in _BAD_ENDS:
        said = f"{name} {outcome['status']}: {outcome.get('reason') or 'no reason is known'}"
        result.content.insert(0, TextContent(text=said))
        result.is_error = True
    return result


def _result(value: Json, text: str | None = None) -> CallToolResult:
    shown = as_json(value)
    try:
        shown.encode()
    except UnicodeEncodeError:  # half of a character, from an expression: no client can be told it
        shown = shown.encode(errors="replace").decode()
        value = json.loads(shown)
    return CallToolResult(content=[TextContent(text=text or shown)], structured_content=value)


def _failed(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)


# --- arguments against a schema: the part of JSON Schema that our tools use, in words that help a model to call again


def argument_problems(schema: Schema, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments; nothing where all is well."""
    if _size(arguments, MAX_ARGUMENT_BYTES) > MAX_ARGUMENT_BYTES:
        most = f"{MAX_ARGUMENT_BYTES // 2**20} MiB"
        return [f"the arguments are larger than {most}; put the data into a file and pass its path"]
    return list(_of_object(schema, arguments, ""))


def _of_object(schema: Schema, value: Mapping[str, Any], where: str) -> Iterator[str]:
    known = schema.get("properties", {})
    required = schema.get("required", ())
    if schema.get("additionalProperties") is False:
        for name in value:
            if name not in known:
                yield unknown(_shown(name)[1:-1], known, f"argument{_inside(where)}")
    for name, inner in known.items():
        if name in value:
            yield from _of_value(inner, value[name], f"{where}.{name}" if where else name)
        elif name in required:
            yield f"{where}.{name} is required" if where else f"{name} is required: {_expected(inner)}"


def _of_value(schema: Schema, value: Any, where: str) -> Iterator[str]:
    kind = schema.get("type")
    if (kind is not None and not is_of_type(value, kind)) or ("enum" in schema and value not in schema["enum"]):
        yield f"{where} has to be {_expected(schema)}, not {_shown(value)}"
    elif kind == "string" and "pattern" in schema and not value.strip():
        yield f"{where} must not be blank"
    elif kind == "array":
        if len(value) < schema.get("minItems", 0):
            yield f"{where} must not be empty"
        for index, item in enumerate(value):
            yield from _of_value(schema.get("items", {}), item, f"{where}[{index}]")
    elif kind == "object":
        yield from _of_object(schema, value, where)


def _expected(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kind = schema.get("type", "any value")
    return _ARTICLES.get(kind, f"a {kind}" if "type" in schema else kind)


def _inside(where: str) -> str:
    return f" in {where}" if where else ""


def _shown(value: Any) -> str:
    """The value, short: the caller knows what it sent, and a model pays for every word."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return type(value).__name__
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _size(value: Any, limit: int) -> int:
    """About how many bytes of JSON the value is; it stops counting once that is too many."""
    total = 0
    left = [value]
    while left and total <= limit:
        item = left.pop()
        if isinstance(item, str):
            total += len(item) + 2
        elif isinstance(item, dict):
            total += 2
            left.extend(item)
            left.extend(item.values())
        elif isinstance(item, list):
            total += 2
            left.extend(item)
        else:
            total += 4
    return total
