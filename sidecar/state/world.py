"""One run's values: Python has the authoritative copy, the engine one that is brought up to date when an expression
reads it, and only by what changed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.state.script import evaluate_simple
from sidecar.state.script_process import WorkerLost
from sidecar.state.script_worker import DROP, RUN, UNSURE, VALUE, Request
from sidecar.state.values import Path, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sidecar.state.script import Expression, Script

# A name of the world, and a path inside its value.
Ref = tuple[str | int, ...]
_MOST_PATCHES = 64
# What the engine lacks of a value: these patches, or (None) the whole of it. Never changed, so that a transaction can
# go back to it.
_Lack = tuple[tuple[Path, object], ...] | None
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
    lacking: dict[str, _Lack]
    removed: _Names
    generation: int
    opened: bool = False  # whether the engine knows of it


class World:
    """Values by name. Nothing that is put in may be changed afterwards by whoever put it in."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._number = script.new_world()
        self._generation = -1
        self._known: dict[int, None] = {}  # programs that the engine has compiled for this world
        self._values: dict[str, Any] = {}
        self._aliases: dict[str, str] = {}
        self._lacking: dict[str, _Lack] = {}
        self._removed: _Names = set()
        self._transaction: _Transaction | None = None
        self._closing = ""  # how the last transaction ended, where the engine has yet to be told

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def set(self, name: str, value: object) -> None:
        """Give a name a value."""
        self._values[name] = value
        self._removed.discard(name)
        self._lacking[name] = None

    def patch(self, name: str, path: Path, value: object, *, whole: object) -> None:
        """Change one place inside a value. `whole` is the new value, equal to the old but for that place."""
        if name not in self._values or not path:
            self.set(name, whole)
            return
        self._values[name] = whole
        lacks = self._lacking.get(name, ())
        if lacks is not None:
            self._lacking[name] = (*lacks, (path, value)) if len(lacks) < _MOST_PATCHES else None

    def remove(self, name: str) -> None:
        """Take a name away: it is undefined again."""
        if self._values.pop(name, self) is not self:
            self._lacking.pop(name, None)
            self._removed.add(name)

    def alias(self, name: str, of: str) -> None:
        """Let expressions know a value by another name; one copy serves both."""
        self._aliases[name] = of

    def get(self, name: str) -> Any:
        """The value that expressions see under a name; None where there is none."""
        return self._values.get(self._aliases.get(name, name))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside, or, after an exception, none: neither here nor in the engine."""
        assert self._transaction is None, "transactions do not nest"
        before = _Transaction(
            dict(self._values), dict(self._aliases), dict(self._lacking), set(self._removed), self._script.generation
        )
        self._transaction = before
        try:
            yield
        except BaseException:
            self._values, self._aliases = before.values, before.aliases
            self._lacking, self._removed = before.lacking, before.removed
            if before.opened:
                self._closing = '["undo"]'
            if before.generation != self._script.generation:
                self._generation = -1  # an engine that was started meanwhile has seen only what is undone now
            raise
        else:
            if before.opened:
                self._closing = '["commit"]'
        finally:
            self._transaction = None

    def run(
        self,
        program: Expression,
        extra: Mapping[str, object] | None = None,
        *,
        bind: Mapping[str, Ref | Sequence[Ref]] | None = None,
    ) -> Any:
        """The value of a program.

        Names are looked up in `extra`, in `bind`, then in the world; elsewhere they are undefined, which is None
        here, as null is. `bind` gives a name the value at one place of the world, or a list of several, without
        carrying it there again.
        """
        if program.simple is not None and not bind:
            try:
                return evaluate_simple(program.simple, self._look(extra))
            except LookupError:
                pass  # the engine can tell, or has an error for it
        with self._script.lock:
            keys: _Names = set()
            arguments = self._arguments(program, extra or {}, bind or {}, keys)
            status, text = self._ask(program, arguments, keys)
        if status != VALUE:
            raise self._script.error(status, text, program.source)
        if text.startswith("e"):
            raise self._script.error(status, text[1:], program.source)
        return unpack(text)

    def close(self) -> None:
        """Let the engine forget the world."""
        with self._script.lock, contextlib.suppress(WorkerLost):
            if self._script.running and self._generation == self._script.generation:
                self._script.engine().handle(Request(DROP, self._number))
            self._generation = -1

    def _look(self, extra: Mapping[str, object] | None) -> Callable[[str], Any]:
        values, aliases = self._values, self._aliases
        if not extra:
            return lambda name: values[aliases.get(name, name)]
        return lambda name: extra[name] if name in extra else values[aliases.get(name, name)]

    def _ask(self, program: Expression, arguments: str, keys: _Names) -> tuple[bytes, str]:
        for again in (True, False):
            engine = self._script.engine()
            if self._generation != self._script.generation:
                self._start_over()
            changes = self._changes(keys)
            code = "" if program.number in self._known else program.code
            try:
                status, text = engine.handle(Request(RUN, self._number, program.number, code, changes, arguments))
            except WorkerLost as lost:
                self._script.lose(lost, again=again)
                continue
            if status == UNSURE:
                self._generation = -1
                return status, text
            self._settle(keys)
            self._known[program.number] = None
            return status, text
        raise AssertionError("lose() raises the second time")

    def _start_over(self) -> None:
        """The engine is new and has nothing, or has something that nobody is sure of."""
        self._generation = self._script.generation
        self._known.clear()
        self._lacking = dict.fromkeys(self._values)
        self._removed.clear()
        self._closing = '["clear"]'
        if self._transaction:
            self._transaction.opened = False

    def _arguments(
        self, program: Expression, extra: Mapping[str, object], bind: Mapping[str, Ref | Sequence[Ref]], keys: _Names
    ) -> str:
        given = []
        for name in program.bound:
            if name in extra:
                given.append(_own(name, extra[name]))
            elif name in bind:
                given.append(_bound(bind[name], keys))
            else:
                key = self._aliases.get(name, name)
                if key in self._values:
                    keys.add(key)
                    given.append(f'"{key}"' if key.isidentifier() else json.dumps(key))
                else:
                    given.append("null")
        return "[" + ",".join(given) + "]"

    def _changes(self, keys: _Names) -> str:
        """What the engine has to do first, so that the values of these keys are right."""
        lacking = keys & self._lacking.keys()
        if not (lacking or self._removed or self._closing):
            return ""
        changes = [self._closing] if self._closing else []
        if self._transaction and not self._transaction.opened:
            changes.append('["begin"]')
        changes += [f'["remove",{json.dumps(key)}]' for key in self._removed]
        for key in lacking:
            lacks, name = self._lacking[key], json.dumps(key)
            shown = key.rpartition(".")[2]
            if lacks is None:
                text, odd = pack(self._values[key], shown)
                changes.append(f'["set",{name},{text}{odd and "," + odd}]')
            for path, value in lacks or ():
                text, odd = pack(value, shown)
                changes.append(f'["patch",{name},{json.dumps(path)},{text}{odd and "," + odd}]')
        return "[" + ",".join(changes) + "]"

    def _settle(self, keys: _Names) -> None:
        if not (self._lacking or self._removed or self._closing):
            return
        told = bool(self._removed or self._closing or keys & self._lacking.keys())
        self._removed.clear()
        self._closing = ""
        for key in keys:
            self._lacking.pop(key, None)
        if told and self._transaction:
            self._transaction.opened = True


def _own(name: str, value: object) -> str:
    if isinstance(value, Returns):
        return f'{{"calls":{pack(value.values, f"{name}()")[0]}}}'
    text, odd = pack(value, name)
    return f'{{"value":{text}{odd and "," + chr(34) + "odd" + chr(34) + ":" + odd}}}'


def _bound(to: Ref | Sequence[Ref], keys: _Names) -> str:
    if isinstance(to, tuple):
        keys.add(str(to[0]))
        return f'{{"at":{json.dumps(to)}}}'
    keys.update(str(ref[0]) for ref in to)
    return f'{{"many":{json.dumps(list(to))}}}'
