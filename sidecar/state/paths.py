"""Reads and writes at a path of the state, which leave what they are given untouched.

A write copies the containers on its path and shares all others with the state before it, and says as patches
what a second copy of the state has to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sidecar.state.path_text import INDEX, Path, PathError, PathTemplate, compile_path, for_writing, parse, show

__all__ = [
    "OPERATIONS",
    "Change",
    "Patch",
    "Path",
    "PathError",
    "PathTemplate",
    "apply",
    "compile_path",
    "for_writing",
    "get",
    "parse",
    "remove",
    "show",
]

OPERATIONS = ("set", "append", "increment", "merge")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Patch:
    """One place that changed: set `value` at `inner` below the top-level `name` (or take it away, if `removed`).

    Whatever contains that place existed before, so a patch can be applied without creating anything on the way.
    """

    section: str
    name: str
    inner: Path
    value: Any = None
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
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


def apply(state: dict[str, Any], path: Path, operation: str = "set", value: Any = None) -> Change:
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
    raise PathError(f"{operation!r} is not an operation; there is: {', '.join(OPERATIONS)}")


def remove(state: dict[str, Any], path: Path) -> Change:
    """The state without what stands at a path; nothing changes where nothing stands. Items of a list move up."""
    for_writing(path)
    parent = get(state, path[:-1], _MISSING)
    if _child(parent, path[-1]) is _MISSING:
        return Change(state, ())
    if isinstance(parent, list):
        index = int(path[-1])
        return _put(state, path[:-1], parent[:index] + parent[index + 1 :])
    kept = {key: item for key, item in parent.items() if key != str(path[-1])}
    changed = _put(state, path[:-1], kept) if len(path) > 2 else Change({**state, str(path[0]): kept}, ())
    return Change(changed.state, (Patch(str(path[0]), str(path[1]), path[2:], removed=True),))


def _append(state: dict[str, Any], path: Path, old: Any, value: Any) -> Change:
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


def _merge(state: dict[str, Any], path: Path, old: Any, value: Any) -> Change:
    """One level deep, as `{...old, ...value}` in JavaScript: a key of the value replaces that key as a whole."""
    if not isinstance(value, dict):
        raise PathError(f"only an object can be merged into {show(path)}, and the value is {_kind(value)}")
    if old is None:
        return _put(state, path, value)
    if not isinstance(old, dict):
        raise PathError(f"{show(path)} is {_kind(old)}, not an object")
    changed = _put(state, path, {**old, **value})
    section, name, inner = str(path[0]), str(path[1]), path[2:]
    return Change(changed.state, tuple(Patch(section, name, (*inner, key), item) for key, item in value.items()))


def _put(state: dict[str, Any], path: Path, value: Any) -> Change:
    """Copies the containers from the root down to the path; the first one that did not exist is what the patch sets."""
    root: Any = dict(state)
    here, depth, made = root, 0, len(path) - 1
    for depth, segment in enumerate(path[:-1]):
        child = _child(here, segment)
        if child is _MISSING or child is None:
            made = min(made, depth)
            child = [] if isinstance(path[depth + 1], int) else {}
        elif not isinstance(child, dict | list):
            raise PathError(
                f"{show(path)} cannot be written: {show(path[: depth + 1])} is {_kind(child)}, not an object"
            )
        else:
            child = child.copy()
        _place(here, path, depth, child)
        here = child
    _place(here, path, len(path) - 1, value)
    # The name itself is the topmost thing that a patch can set.
    made = max(made, 1)
    patch = Patch(str(path[0]), str(path[1]), _shown_inner(root, path, made), get(root, path[: made + 1]))
    return Change(root, (patch,))


def _shown_inner(root: Any, path: Path, made: int) -> Path:
    """The segments below the name as they are in the state: an index of a list is a number, a key is a text."""
    inner: list[str | int] = []
    for depth in range(2, made + 1):
        container = get(root, path[:depth])
        inner.append(int(path[depth]) if isinstance(container, list) else str(path[depth]))
    return tuple(inner)


def _place(container: Any, path: Path, depth: int, value: Any) -> None:
    segment = path[depth]
    if isinstance(container, dict):
        container[str(segment)] = value
        return
    where = show(path[:depth])
    if isinstance(segment, str) and not INDEX.fullmatch(segment):
        raise PathError(f"{where} is a list, not an object: it has no {segment!r}")
    index = int(segment)
    if index > len(container):
        raise PathError(f"{where} has {len(container)} items: there is no place for [{index}]")
    container[index : index + 1] = [value]


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
