"""Paths of the state: parsed from text, read and written.

`raw.results["src/a.ts"].x[0]` reads like JavaScript; it is a tuple of keys (text) and indexes (numbers in `[ ]`), and
what comes from `{{ }}` is one key. A write copies the containers on its path, shares all others with the state before
it, and gives as patches what a second copy of the state has to change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from sidecar.errors import SidecarError, TemplateError
from sidecar.state.template import Compiled, Compiler, Run, Slot, as_key, compile_text

Path = tuple[str | int, ...]
WRITABLE = ("raw", "state")

_PLAIN = re.compile(r"[^\s.\[\]{}\"'`]+")
INDEX = re.compile(r"[0-9]{1,15}")
_SEGMENT = re.compile(
    r"""(?xs) \.(?P<name>[^\s.\[\]{}\"'`]*) | \[
        (?: (?P<index>[0-9]{1,15})(?![0-9]) | (?P<quote>["'])(?P<key>(?:\\.|(?!(?P=quote))[^\\])*)(?P<end>(?P=quote))?
          | (?P<mark>[^]]) )? (?P<close>])?"""
)
_ESCAPE = re.compile(r"(?s)\\(?:u([0-9a-fA-F]{4})|(.))")
_FIRST_MARK = 0xF0000
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


class PathError(SidecarError):
    """A path cannot be read, or leads where nothing can be written."""


def parse(text: str) -> Path:
    """The segments of a path; `[0]` is an index, `["a.b"]` and names between dots are keys."""
    return tuple(segment if isinstance(segment, int) else segment.text for segment in _read((text,)))


def show(path: Path) -> str:
    """The path as one writes it; `parse` gives it back."""
    shown = ""
    for segment in path:
        if isinstance(segment, int):
            shown += f"[{segment}]"
        elif _PLAIN.fullmatch(segment):
            shown += f".{segment}" if shown else segment
        else:
            escaped = segment.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "\\0")
            shown += f'["{escaped}"]'
    return shown


def for_writing(path: Path) -> Path:
    """The path itself, where it may be written; otherwise an error that names the right form."""
    if len(path) >= 2 and path[0] in WRITABLE and isinstance(path[1], str):
        return path
    written = show(path)
    if path[:1] == ("computed",):
        raise PathError(f"{written} is computed, not written; writes go to raw. or state.")
    if path[:1] in (("raw",), ("state",)):
        raise PathError(f"{written} needs a name: writes go to {path[0]}.<name>")
    raise PathError(f"{written} cannot be written: writes go to raw. or state., as in {show(('raw', *path))}")


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A path some of whose segments come from `{{ }}`."""

    text: str
    segments: tuple[_Segment | int, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(segment.names for segment in self.segments if not isinstance(segment, int)))

    def resolve(self, run: Run) -> Path:
        """The path now; a value becomes exactly one segment."""
        return tuple(segment if isinstance(segment, int) else segment.resolve(run) for segment in self.segments)


def compile_path(text: str, compiler: Compiler) -> PathTemplate:
    """A path as a definition has it. The part before the first `{{ }}` has to lead below raw. or state."""
    segments = tuple(_read(compile_text(text, compiler).parts))
    fixed: list[str | int] = []
    for segment in segments[:2]:
        if not isinstance(segment, int) and segment.slots:
            # Which section is written has to be known without running anything: nothing else can be checked.
            if not fixed:
                raise PathError(f"{text} has to begin with raw. or state., outside of {{{{ }}}}")
            fixed.append("x")
        else:
            fixed.append(segment if isinstance(segment, int) else segment.text)
    for_writing(tuple(fixed))
    return PathTemplate(text, segments)


@dataclass(frozen=True, slots=True)
class _Segment(Compiled):
    """One key; `bracket` if it stood in `[ ]`, where a lone number is an index."""

    bracket: bool = False

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    def resolve(self, run: Run) -> str | int:
        if self.bracket and len(self.parts) == 1 and isinstance(self.parts[0], Slot):
            value = self.parts[0].value(run)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            return _key(self.parts[0], value)
        return "".join(part if isinstance(part, str) else _key(part, part.value(run)) for part in self.parts)


def _key(slot: Slot, value: Any) -> str:
    try:
        return as_key(value)
    except ValueError as error:
        raise TemplateError(f"{slot.placeholder.shown}: {error}", slot.placeholder.offset) from error


def _read(parts: tuple[str | Slot, ...]) -> list[_Segment | int]:
    """The segments of a path. A slot is never looked into: for each, a character stands that the text does not have."""
    written = "".join(part for part in parts if isinstance(part, str))
    unused = (chr(code) for code in range(_FIRST_MARK, sys.maxunicode) if chr(code) not in written)
    slots = {next(unused): part for part in parts if isinstance(part, Slot)}
    marks = iter(slots)
    text = "." + "".join(part if isinstance(part, str) else next(marks) for part in parts).strip()

    def wrong(why: str) -> PathError:
        shown = "".join(part if isinstance(part, str) else part.placeholder.shown for part in parts)
        return PathError(f"{shown!r} is not a path: {why}")

    def unescaped(found: re.Match[str]) -> str:
        if found[2] == "u":
            raise wrong("after \\u stand four hexadecimal digits")
        return chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2])

    segments: list[_Segment | int] = []
    at = 0
    while at < len(text):
        found = _SEGMENT.match(text, at)
        if found is None:
            raise wrong(f'a key with {text[at]!r} is written ["…"]' if text[at - 1] != "]" else "after ], write . or [")
        at = found.end()
        name, index, key, mark = found["name"], found["index"], found["key"], found["mark"]
        if problem := _problem(found, slots):
            raise wrong(problem)
        if index:
            segments.append(int(index))
        else:
            characters = name or mark or _ESCAPE.sub(unescaped, key)
            segments.append(_Segment(tuple(slots.get(one, one) for one in characters), bracket=mark is not None))
    return segments


def _problem(found: re.Match[str], slots: Container[str | None]) -> str:
    """What is wrong with a segment."""
    if found["name"] is not None:
        after = found.string[found.end() : found.end() + 1]
        return "" if found["name"] else f"a name is missing before {after!r}" if after else "a name is missing"
    if found["index"] is None and found["key"] is None and found["mark"] not in slots:
        return 'inside [ ], write a number or a key in quotes, as in ["src/a.ts"]'
    if found["quote"] and not found["end"]:
        return f"the {found['quote']} is not closed"
    return "" if found["close"] else "the [ is not closed"


OPERATIONS = ("set", "append", "increment", "merge")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Patch:
    """One place that changed: set `value` at `inner` below the top-level `name`.

    Whatever contains that place existed before, so a patch can be applied without creating anything on the way.
    """

    section: str
    name: str
    inner: Path
    value: Any


@dataclass(frozen=True, slots=True)
class StateChange:
    """What a write leads to: the new state, and its difference from the old one."""

    state: dict[str, Any]
    patches: tuple[Patch, ...]


def get(state: Any, path: Path, default: Any = None) -> Any:
    """What stands at a path; `default` where nothing does."""
    for segment in path:
        state = _child(state, segment)
        if state is _MISSING:
            return default
    return state


def apply(state: dict[str, Any], path: Path, operation: str = "set", value: Any = None) -> StateChange:
    """The state after one write. `increment` without a value adds 1; null counts as not there yet."""
    for_writing(path)
    old = get(state, path, _MISSING)
    old = None if old is _MISSING else old
    if operation == "set":
        return _put(state, path, value)
    if operation == "append":
        return _append(state, path, old, value)
    if operation == "increment":
        return _put(state, path, _sum(path, old, 1 if value is None else value))
    if operation == "merge":
        return _merge(state, path, old, value)
    raise PathError(f"{operation!r} is not an operation; available: {', '.join(OPERATIONS)}")


def _append(state: dict[str, Any], path: Path, old: Any, value: Any) -> StateChange:
    """The value becomes one more item, also if it is a list itself."""
    if old is None:
        return _put(state, path, [value])
    if not isinstance(old, list):
        raise PathError(f"{show(path)} is {_kind(old)}, not a list")
    return _put(state, (*path, len(old)), value)


def _sum(path: Path, old: Any, amount: Any) -> Any:
    for number, what in ((old, show(path)), (amount, f"the amount to add to {show(path)}")):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise PathError(f"{what} is {_kind(number)}, not a number")
    return (old or 0) + amount


def _merge(state: dict[str, Any], path: Path, old: Any, value: Any) -> StateChange:
    """One level deep, as `{...old, ...value}` in JavaScript: a key of the value replaces that key as a whole."""
    if not isinstance(value, dict):
        raise PathError(f"only an object can be merged into {show(path)}, and the value is {_kind(value)}")
    if old is None:
        return _put(state, path, value)
    if not isinstance(old, dict):
        raise PathError(f"{show(path)} is {_kind(old)}, not an object")
    changed = _put(state, path, {**old, **value})
    section, name, inner = str(path[0]), str(path[1]), path[2:]
    return StateChange(changed.state, tuple(Patch(section, name, (*inner, key), item) for key, item in value.items()))


def _put(state: dict[str, Any], path: Path, value: Any) -> StateChange:
    """Copies the containers from the root down to the path; the first one that did not exist is what the patch sets."""
    root: Any = dict(state)
    here, made, last = root, len(path) - 1, len(path) - 1
    keys: list[str | int] = []  # as they are in the state: an index of a list is a number, a key is a text
    for depth, segment in enumerate(path):
        child = value if depth == last else _child(here, segment)
        if depth < last and (child is _MISSING or child is None):
            made = min(made, depth)
            child = [] if isinstance(path[depth + 1], int) else {}
        elif depth < last:
            if not isinstance(child, dict | list):
                at = show(path[: depth + 1])
                raise PathError(f"{show(path)} cannot be written: {at} is {_kind(child)}, not an object")
            child = child.copy()
        keys.append(_place(here, path[:depth], segment, child))
        here = child
    # The name itself is the topmost thing that a patch can set.
    made = max(made, 1)
    patch = Patch(str(path[0]), str(path[1]), tuple(keys[2 : made + 1]), get(root, path[: made + 1]))
    return StateChange(root, (patch,))


def _place(container: Any, where: Path, segment: str | int, value: Any) -> str | int:
    """Puts a value into a container, and gives the key or the index at which it is now."""
    if isinstance(container, dict):
        container[str(segment)] = value
        return str(segment)
    if isinstance(segment, str) and not INDEX.fullmatch(segment):
        raise PathError(f"{show(where)} is a list, not an object: it has no {segment!r}")
    index = int(segment)
    if index > len(container):
        raise PathError(f"{show(where)} has {len(container)} items: there is no place for [{index}]")
    container[index : index + 1] = [value]
    return index


def _child(container: Any, segment: str | int) -> Any:
    if isinstance(container, dict):
        return container.get(str(segment), _MISSING)
    if isinstance(container, list) and (isinstance(segment, int) or INDEX.fullmatch(segment)):
        index = int(segment)
        return container[index] if index < len(container) else _MISSING
    return _MISSING


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)
