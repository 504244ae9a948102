"""What lists say of workflows: remembered from the last time, and read anew where the file is another.

To read a hundred workflows takes most of a second; to see that none of them has changed, a few milliseconds.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import yaml

import sidecar
from sidecar.catalog import naming, yaml_format
from sidecar.layout import open_at_once

if TYPE_CHECKING:
    from sidecar.model.parameters import Parameter


Row = dict[str, Any]

_SETTLED_S = 2.0  # a file that changed just now may change again without a trace: clocks of file systems are coarse
_READERS = ("catalog", "model")  # the packages whose code decides what a file says


def rows(root: str, source: str | None = None) -> tuple[list[Row], list[str]]:
    """Every workflow as programs want it, by name, and what is wrong first with each file that defines none."""
    wanted = None if source is None else naming.source_named(source)
    memory = _Memory(root)
    found: list[Row] = []
    problems: list[str] = []
    for name, (where, path) in naming.known(root, "workflows", problems).items():
        if path is None or wanted not in (None, where):
            continue
        if (why := naming.stray(root, "workflows", where, path)) is not None:
            problems.append(f"{path}:1: {why}")
            continue
        identity = _identity(path)
        said = memory.recall(path, identity) or _read(path, identity, memory)
        if isinstance(said, list):
            more = f" (and {len(said) - 1} more: sidecar validate {name})" if len(said) > 1 else ""
            problems.append(said[0] + more)
        else:
            found.append({"name": name, "description": "", "source": where, **said, "path": path})
    memory.save(everything=wanted is None)
    return found, problems


def described(parameter: Parameter) -> Row:
    """One parameter as programs want it."""
    told: Row = {"name": parameter.name, "type": parameter.type, "required": parameter.is_required}
    told["description"] = parameter.description
    if parameter.default is not None:
        told["default"] = parameter.default
    if parameter.choices is not None:
        told["choices"] = list(parameter.choices)
    return told


def _read(path: str, identity: list[int] | None, memory: _Memory) -> Row | list[str]:

    said = quick_heading(path) or _read_whole(path)
    if isinstance(said, dict):
        memory.keep(path, identity, said)
    return said


def _read_whole(path: str) -> Row | list[str]:
    from sidecar.catalog import workflows  # noqa: PLC0415 - pydantic, only where a glance is not enough

    heading = workflows.heading(path)
    if isinstance(heading, tuple):
        return list(heading)
    parameters = [described(one) for one in heading.parameters]
    return {"description": heading.description, "parameters": parameters, "version": heading.version}


def _identity(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino]


class _Memory:
    """One file for each project, among the caches of this user. Whatever is wrong with it, it is as if it were not."""

    def __init__(self, root: str) -> None:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._directory = os.path.join(caches, "sidecar")
        self._path = os.path.join(self._directory, f"workflows-{zlib.crc32(os.fsencode(root)):08x}.json")
        self._made_by = _code()
        self._before: Row = {}
        self._after: Row = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open(self._path, encoding="utf-8") as file:
                content = json.load(file)
            if content["made_by"] == self._made_by:
                self._before = dict(content["files"])

    def recall(self, path: str, identity: list[int] | None) -> Row | None:
        """What the file said, if it is still the same file."""
        entry = self._before.get(path)
        if identity is None or not isinstance(entry, dict) or entry.get("identity") != identity:
            return None
        self._after[path] = entry
        said: Row = entry["said"]
        return said

    def keep(self, path: str, identity: list[int] | None, said: Row) -> None:
        """For the next time."""
        if identity is not None and time.time() - max(identity[:2]) / 1e9 > _SETTLED_S:
            self._after[path] = {"identity": identity, "said": said}

    def save(self, *, everything: bool) -> None:
        """Where there is anything new; what was not among everything is gone. One that cannot be saved is no loss."""
        files = self._after if everything else self._before | self._after
        if files == self._before:
            return
        temporary = f"{self._path}.{os.getpid()}"
        with suppress(OSError, ValueError):  # ValueError: a name that is no UTF-8
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            with open(temporary, "w", encoding="utf-8", opener=_private) as file:
                json.dump({"made_by": self._made_by, "files": files}, file)
            os.replace(temporary, self._path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _code() -> str:
    """What the reading depends on besides the file: which sidecar reads it, down to the last edit of a checkout."""
    newest = 0
    for package in _READERS:
        with os.scandir(os.path.join(os.path.dirname(os.path.abspath(sidecar.__file__)), package)) as entries:
            newest = max(newest, *(entry.stat().st_mtime_ns for entry in entries if entry.name.endswith(".py")))
    return f"{sidecar.__version__} {newest}"


# The heading of a workflow file at a glance: what lists tell of it, without the models that the whole file needs.
#
# Those take longer to import than a hundred files take to read. Whatever is not as it usually is, is left to the whole
# reader: here nothing is refused, and nothing is said that the other would not say. YAML, the heading and the types of
# the steps are checked; what stands inside of a step is for `sidecar validate`, and for the run.
#


_MAX_BYTES = 1024 * 1024
_WRAPPER = "workflow"
_TEXT = "tag:yaml.org,2002:str"
KEYS = frozenset(
    [
        "name",
        "version",
        "description",
        "inputs",
        "imports",
        "default_state",
        "state_schema",
        "steps",
        "sub_agent_tasks",
        "error_handling",
        "on_resume",
        "limits",
    ]
)
STEP_TYPES = frozenset(
    [
        "shell_command",
        "agent_shell_command",
        "agent",
        "mcp_call",
        "state_update",
        "user_input",
        "user_message",
        "apply_hints",
        "conditional",
        "while",
        "foreach",
        "parallel_foreach",
        "include_workflow",
        "break",
        "continue",
        "wait",
        "exit",
    ]
)
STEP_LISTS = frozenset(("steps", "body", "then", "else"))
DECLARATION = frozenset(("type", "description", "required", "default", "choices"))
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# libyaml's composer recurses in C. Spaces, dashes and brackets tell how deep a file can nest at most.
_DEEP = 200
_BRACKETS = 2000


if yaml_format.FAST:

    class _Loader(yaml_format.FastLoader):
        """The same, told sooner that most values are texts, and that nobody finds types by the place of a value."""

        _FIRST = frozenset(yaml_format.FastLoader.yaml_implicit_resolvers)  # the beginnings of everything else

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            if kind is yaml.ScalarNode and not (implicit[0] and value[:1] in self._FIRST):
                return _TEXT
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

        def descend_resolver(self, *_: object) -> None:
            pass

        def ascend_resolver(self) -> None:
            pass


class _Unusual(Exception):  # noqa: N818 - not an error: somebody else is asked
    """This file is not for us."""


def quick_heading(path: str) -> dict[str, Any] | None:
    """Version, description and parameters of the workflow in a file; None: ask the whole reader."""
    try:
        text = _text(path)
        root = _Loader(text).get_single_node()
        return _quick_heading(root)
    except (_Unusual, OSError, yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _text(path: str) -> str:
    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _Unusual
        content = file.read(_MAX_BYTES + 1)
    text = content.decode()
    if len(content) > _MAX_BYTES or _may_be_heavy(text) or not yaml_format.is_fast(text):
        raise _Unusual
    return text


def _may_be_heavy(text: str) -> bool:
    in_one_line = text.count("- -") + text.count("? ?") + text.count("- ?") + text.count("? -")
    # And line breaks and commas how many values it has, about: the composer stops at none.
    if text.count("\n") + text.count(",") > yaml_format.MAX_VALUES:
        return True
    return " " * _DEEP in text or in_one_line > _DEEP or text.count("[") + text.count("{") > _BRACKETS


def _quick_heading(root: Any) -> dict[str, Any]:
    _check_keys(root)
    entries = dict(_entries(root))
    if list(entries) == [_WRAPPER]:
        entries = dict(_entries(entries[_WRAPPER]))
    if not KEYS.issuperset(entries) or not ("steps" in entries or "sub_agent_tasks" in entries):
        raise _Unusual
    if "name" in entries and not naming.is_name(_written(entries["name"])):
        raise _Unusual
    if "steps" in entries:
        _check_steps(entries["steps"])
    inputs = dict(_entries(entries["inputs"])) if "inputs" in entries else {}
    return {
        "description": _written(entries["description"]) if "description" in entries else "",
        "parameters": [_parameter(name, node) for name, node in inputs.items()],
        "version": _written(entries["version"]) if "version" in entries else "",
    }


def _parameter(name: str, node: Any) -> dict[str, Any]:
    said = {key: _value(child) for key, child in _entries(node)}
    kind, default, choices = said.get("type", "string"), said.get("default"), said.get("choices")
    is_usual = (
        _PARAMETER.fullmatch(name)
        and DECLARATION.issuperset(said)
        and None not in said.values()  # most likely forgotten
        and kind in TYPES
        and isinstance(said.get("description", ""), str)
        and isinstance(said.get("required", True), bool)
        and (default is None or _fits(default, kind))
        and (choices is None or (isinstance(choices, list) and choices and all(_fits(one, kind) for one in choices)))
        and (choices is None or default is None or default in choices)
    )
    if not is_usual:
        raise _Unusual
    told = {"name": name, "type": kind, "required": said.get("required", default is None)}
    told["description"] = said.get("description", "")
    return told | {key: said[key] for key in ("default", "choices") if key in said}


def _fits(value: object, kind: str) -> bool:
    return kind == "boolean" if isinstance(value, bool) else isinstance(value, TYPES[kind])


def _check_steps(node: Any) -> None:
    if not isinstance(node, yaml.SequenceNode):
        raise _Unusual
    for step in node.value:
        entries = dict(_entries(step))
        if _written(entries.get("type")) not in STEP_TYPES:
            raise _Unusual
        for key in STEP_LISTS & entries.keys():
            _check_steps(entries[key])


def _check_keys(root: Any) -> None:
    """That no mapping has a key twice, or one that is no text, and that no alias makes a file larger than it looks."""
    todo, seen = [root], set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            raise _Unusual
        seen.add(id(node))
        if type(node) is yaml.SequenceNode:
            todo += [child for child in node.value if type(child) is not yaml.ScalarNode]
        elif type(node) is yaml.MappingNode:
            keys = {key.value for key, _ in node.value if type(key) is yaml.ScalarNode and key.tag == _TEXT}
            if len(keys) < len(node.value):
                raise _Unusual
            todo += [child for _, child in node.value if type(child) is not yaml.ScalarNode]


def _entries(node: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(node, yaml.MappingNode):
        raise _Unusual
    for key, child in node.value:
        yield key.value, child  # a text: that was checked


def _written(node: Any) -> str:
    """A text."""
    if type(node) is not yaml.ScalarNode or node.tag != _TEXT:
        raise _Unusual
    text: str = node.value
    text.encode()  # half of a surrogate pair is no character
    return text


def _value(node: Any) -> Any:
    """What a node stands for, where JSON has that, too."""
    if type(node) is yaml.ScalarNode and node.tag == _TEXT:
        return _written(node)
    value = _Loader("").construct_document(node)
    if json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode()) != value:
        raise _Unusual
    return value
