"""The values of one run, and expressions evaluated on them.

Python has the authoritative copy. The engine has another, which gets what changed when an expression reads it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.state.script import evaluate_simple
from sidecar.state.script_process import WorkerLost
from sidecar.state.script_worker import DROP, RUN, UNSURE, VALUE, EngineRequest
from sidecar.state.values import Path, array, encode, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sidecar.state.script import Expression, Script

# A name of the world, and a path inside its value.
Ref = tuple[str | int, ...]
_MOST_PATCHES = 64
# What the engine has yet to get of a value: these patches, or (None) the whole of it.
_Patches = tuple[tuple[Path, object], ...] | None
_Names = set[str]  # inside World, `set` is its method


@dataclass(frozen=True, slots=True)
class Returns:
    """A name bound to a function: one value is returned by every call, several are returned in turn."""

    values: tuple[object, ...]


@dataclass(slots=True)
class _Transaction:
    """What to go back to."""

    values: dict[str, Any]
    aliases: dict[str, str]
    dirty: dict[str, _Patches]
    removed: _Names
    generation: int
    opened: bool = False  # in the engine, too


class World:
    """Values by name. Nothing that is put in may be changed afterwards."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._number = script.new_world()
        self._generation = -1
        self._compiled: dict[int, None] = {}  # expressions that the engine has compiled for this world
        self._values: dict[str, Any] = {}
        self._aliases: dict[str, str] = {}
        self._dirty: dict[str, _Patches] = {}
        self._removed: _Names = set()
        self._transaction: _Transaction | None = None
        self._pending = ""  # an operation that the engine has yet to apply: commit, undo or clear

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def set(self, name: str, value: object) -> None:
        """Give a name a value."""
        self._values[name] = value
        self._removed.discard(name)
        self._dirty[name] = None

    def patch(self, name: str, path: Path, value: object, *, whole: object) -> None:
        """Change one place inside a value. `whole` is the new value, equal to the old but for that place."""
        if name not in self._values or not path:
            self.set(name, whole)
            return
        self._values[name] = whole
        patches = self._dirty.get(name, ())
        if patches is not None:
            self._dirty[name] = (*patches, (path, value)) if len(patches) < _MOST_PATCHES else None

    def remove(self, name: str) -> None:
        """Take a name away: it is undefined again."""
        if self._values.pop(name, self) is not self:
            self._dirty.pop(name, None)
            self._removed.add(name)

    def alias(self, name: str, *of: str) -> None:
        """Give a value another name for expressions; one copy serves both. Of several, the first that is there."""
        self._aliases[name] = next((key for key in of if key in self._values), of[-1])

    def show(self, name: str, sections: Sequence[str]) -> None:
        """Let expressions see under a name what the first of these sections has there."""
        self.alias(name, *(f"{section}.{name}" for section in sections), name)

    def get(self, name: str) -> Any:
        """The value that expressions see under a name; None where there is none."""
        return self._values.get(self._aliases.get(name, name))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside, or, after an exception, none: neither here nor in the engine."""
        assert self._transaction is None, "transactions do not nest"
        before = _Transaction(
            dict(self._values), dict(self._aliases), dict(self._dirty), set(self._removed), self._script.generation
        )
        self._transaction = before
        try:
            yield
        except BaseException:
            self._values, self._aliases = before.values, before.aliases
            self._dirty, self._removed = before.dirty, before.removed
            if before.opened:
                self._pending = "undo"
            if before.generation != self._script.generation:
                self._generation = -1  # an engine that was started meanwhile has seen only what is undone now
            raise
        else:
            if before.opened:
                self._pending = "commit"
        finally:
            self._transaction = None

    def run(
        self,
        expression: Expression,
        extra: Mapping[str, object] | None = None,
        *,
        bind: Mapping[str, Ref | Sequence[Ref]] | None = None,
    ) -> Any:
        """The value of an expression.

        Names are looked up in `extra`, in `bind`, then in the world; elsewhere they are undefined, which is None
        here, as null is. `bind` gives a name the value at one place of the world, or a list of several, without
        carrying it there again.
        """
        if expression.simple is not None and not bind:
            try:
                return evaluate_simple(expression.simple, self._named(expression.names, extra or {}))
            except LookupError:
                pass  # a name without a value, or another doubt: the engine evaluates it
        keys: _Names = set()

        def request() -> EngineRequest:
            if self._generation != self._script.generation:
                self._start_over()
            code = "" if expression.number in self._compiled else expression.code
            return EngineRequest(RUN, self._number, expression.number, code, self._changes(keys), arguments)

        with self._script.lock:
            arguments = self._arguments(expression, extra or {}, bind or {}, keys)
            status, text = self._script.ask(request)
            if status == UNSURE:
                self._generation = -1
            else:
                self._mark_sent(keys)
                self._compiled[expression.number] = None
        if status != VALUE:
            raise self._script.error(status, text, expression.source)
        if text.startswith("e"):
            raise self._script.error(status, text[1:], expression.source)
        return unpack(text)

    def close(self) -> None:
        """Let the engine forget the world."""
        with self._script.lock, contextlib.suppress(WorkerLost):
            if self._script.running and self._generation == self._script.generation:
                self._script.engine().handle(EngineRequest(DROP, self._number))
            self._generation = -1

    def _named(self, names: Sequence[str], extra: Mapping[str, object]) -> dict[str, Any]:
        values, aliases = self._values, self._aliases
        return {name: extra[name] if name in extra else values[aliases.get(name, name)] for name in names}

    def _start_over(self) -> None:
        """The engine is new and has nothing, or may have something else than it should."""
        self._generation = self._script.generation
        self._compiled.clear()
        self._dirty = dict.fromkeys(self._values)
        self._removed.clear()
        self._pending = "clear"
        if self._transaction:
            self._transaction.opened = False

    def _arguments(
        self, expression: Expression, extra: Mapping[str, object], bind: Mapping[str, Ref | Sequence[Ref]], keys: _Names
    ) -> str:
        given = []
        for name in expression.bound:
            if name in extra:
                given.append(_own(name, extra[name]))
            elif name in bind:
                given.append(_bound(bind[name], keys))
            else:
                key = self._aliases.get(name, name)
                if key in self._values:
                    keys.add(key)
                given.append(encode(key if key in self._values else None))
        return array(*given)

    def _changes(self, keys: _Names) -> str:
        """What the engine has to do first, so that the values of these keys are right."""
        dirty = keys & self._dirty.keys()
        if not (dirty or self._removed or self._pending):
            return ""
        changes = [encode([self._pending])] if self._pending else []
        if self._transaction and not self._transaction.opened:
            changes.append(encode(["begin"]))
        changes += [encode(["remove", key]) for key in self._removed]
        for key in dirty:
            patches = self._dirty[key]
            shown = key.rpartition(".")[2]
            if patches is None:
                changes.append(array(encode("set"), encode(key), *pack(self._values[key], shown)))
            for path, value in patches or ():
                changes.append(array(encode("patch"), encode(key), encode(path), *pack(value, shown)))
        return array(*changes)

    def _mark_sent(self, keys: _Names) -> None:
        """The engine has what `_changes` gave for these keys."""
        if not (self._dirty or self._removed or self._pending):
            return
        if self._transaction and (self._removed or self._pending or keys & self._dirty.keys()):
            self._transaction.opened = True
        self._removed.clear()
        self._pending = ""
        for key in keys:
            self._dirty.pop(key, None)


def _own(name: str, value: object) -> str:
    """A value that is not in the world, as the realm's `bound` reads it: [value] or [value, odd]."""
    if isinstance(value, Returns):
        return f'{{"calls":{pack(value.values, f"{name}()")[0]}}}'
    return array(*pack(value, name))


def _bound(to: Ref | Sequence[Ref], keys: _Names) -> str:
    keys.update(str(ref[0]) for ref in ([to] if isinstance(to, tuple) else to))
    return encode({"at": to} if isinstance(to, tuple) else {"many": to})
