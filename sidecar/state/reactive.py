"""A run's state: raw and state are written, computed fields follow, and an update happens as a whole or not at all.

The graph of the computed fields gives the order to compute them in, and which of them a change affects.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.errors import ExpressionError, SidecarError
from sidecar.state import paths
from sidecar.state.values import DEEPEST, glimpse, plain, same, too_deep, truthy
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sidecar.state.script import Expression, Script


SECTIONS = ("raw", "state", "computed")
_SHOWN = ("computed", "raw", "state")  # under a plain name, as in the flattened view
OnError = Literal["use_fallback", "propagate", "ignore"]
_UNSET: Any = object()


class DependencyError(SidecarError):
    """Computed fields that cannot be computed in any order, or read what there is not. `field` is the one to mend."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Computation:
    """How a field is computed. One source is `input` itself, several (a tuple) are the items of `input`."""

    sources: str | tuple[str, ...]
    transform: str
    on_error: OnError = "propagate"
    fallback: Any = None
    validate: str | None = None


class Write(NamedTuple):
    """One write of an update; `path` begins with raw. or state."""

    path: str | paths.Path
    value: Any = None
    operation: str = "set"


@dataclass(frozen=True, slots=True)
class Transformation:
    """That a field was computed. `input` and `output` are cut short where they are large."""

    field: str
    at: float  # since 1970
    trigger: str
    input: Any
    output: Any
    duration_ms: float
    error: str | None
    version: int
    applied: bool = True  # False: the update was undone


@dataclass(slots=True)
class _Attempt:
    """A transaction under way."""

    sections: dict[str, Any]
    computed: dict[str, Any]
    changed: list[str] = field(default_factory=list)
    trace: list[Transformation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Compiled:
    transform: Expression
    validate: Expression | None
    inputs: tuple[str | int, ...] | list[tuple[str | int, ...]]


class Reactive:
    """The state of one run. Values that it gives are shared: they are not to be changed by who gets them.

    A field is computed when all its sources are there, once per update, after the fields that it reads, and only if
    one of its sources has another value than before. It then has the value that computing everything from scratch
    would give. An error that is ignored leaves the field without a value, and so the fields that read it.
    """

    def __init__(
        self,
        script: Script,
        fields: Mapping[str, Computation],
        *,
        raw: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        declared: Iterable[str] = (),
        names: Mapping[str, Any] | None = None,
        version: int = 0,
        on_computed: Callable[[Transformation], None] = lambda _: None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`declared` are names that expressions find to be null, not undefined, before they are set; `names` are
        values that they see besides, such as the run's inputs. `on_computed` gets every field that was
        computed, when the update is done or undone."""
        self._fields = dict(fields)
        self._on_computed = on_computed
        self._timer = timer
        self.graph = Graph({name: _tuple(computed.sources) for name, computed in fields.items()})
        self._compiled = {name: self._compile(script, name) for name in self.graph.order}
        self.version = version
        self.world = World(script)
        self._sections: dict[str, Any] = {"raw": {}, "state": {}}
        self._computed: dict[str, Any] = {}
        for name in (*declared, *fields):
            self.world.set(name, None)
        for name, value in (names or {}).items():
            self.world.set(name, value)
        writes = [
            Write((section, name), value)
            for section, given in (("raw", raw), ("state", state))
            for name, value in (given or {}).items()
        ]
        self._transact(writes, version)

    @property
    def raw(self) -> dict[str, Any]:
        """What steps and agents wrote."""
        return dict(self._sections["raw"])

    @property
    def state(self) -> dict[str, Any]:
        """The other values that are written."""
        return dict(self._sections["state"])

    @property
    def computed(self) -> dict[str, Any]:
        """The fields that have a value now."""
        return dict(self._computed)

    def flattened(self) -> dict[str, Any]:
        """What expressions and agents see: computed over raw over state."""
        return {**self._sections["state"], **self._sections["raw"], **self._computed}

    def update(self, writes: Sequence[Write]) -> tuple[str, ...]:
        """All writes and every recomputation, or, with the error, none of it; the computed fields that have another
        value now."""
        return self._transact(writes, self.version + 1) if writes else ()

    def close(self) -> None:
        """Let the evaluator forget it."""
        self.world.close()

    def _compile(self, script: Script, name: str) -> _Compiled:
        computed, sources = self._fields[name], self.graph.sources[name]
        try:
            transform = script.compile(computed.transform)
            validate = script.compile(computed.validate) if computed.validate is not None else None
        except ExpressionError as error:
            raise _of_field(name, error) from None
        refs = [(source.key, *source.inner) for source in sources]
        return _Compiled(transform, validate, refs[0] if isinstance(computed.sources, str) else refs)

    def _transact(self, writes: Sequence[Write], version: int) -> tuple[str, ...]:
        attempt = _Attempt(self._sections, dict(self._computed))
        try:
            with self.world.transaction():
                touched = dict.fromkeys(key for write in writes for key in self._write(attempt, write))
                self._recompute(attempt, touched, version)
        except BaseException:
            for one in attempt.trace:
                self._on_computed(replace(one, applied=False))
            raise
        self._sections, self._computed = attempt.sections, attempt.computed
        self.version = version
        for one in attempt.trace:
            self._on_computed(one)
        return tuple(attempt.changed)

    def _write(self, attempt: _Attempt, write: Write) -> list[str]:
        """One write, here and in the world; the keys that it touched."""
        path = paths.parse(write.path) if isinstance(write.path, str) else write.path
        shown = paths.show(path)
        if too_deep(write.value, DEEPEST - len(path)):
            raise ExpressionError(f"{shown} would be nested more than {DEEPEST} levels deep", kind="value")
        change = paths.apply(attempt.sections, path, write.operation, plain(write.value, shown))
        attempt.sections = change.state
        keys = []
        for patch in change.patches:
            key = f"{patch.section}.{patch.name}"
            self.world.patch(key, patch.inner, patch.value, whole=change.state[patch.section][patch.name])
            self.world.show(patch.name, _SHOWN)
            keys.append(key)
        return keys

    def _recompute(self, attempt: _Attempt, touched: Iterable[str], version: int) -> None:
        """In dependency order: a queue of positions, which grows by the readers of what changed."""
        position, order = self.graph.position, self.graph.order
        waiting = sorted({position[name] for key in touched for name in self.graph.readers(key)})
        queued = set(waiting)
        while waiting:
            name = order[heapq.heappop(waiting)]
            if not self._refresh(attempt, name, version):
                continue
            attempt.changed.append(name)
            self.world.show(name, _SHOWN)
            for reader in self.graph.readers(f"computed.{name}"):
                if position[reader] not in queued:
                    queued.add(position[reader])
                    heapq.heappush(waiting, position[reader])

    def _refresh(self, attempt: _Attempt, name: str, version: int) -> bool:
        """Whether the field has another value now."""
        sources = self.graph.sources[name]
        now = [_at(attempt.sections, attempt.computed, source) for source in sources]
        before = [_at(self._sections, self._computed, source) for source in sources]
        if all(map(same, now, before)):
            return False
        old = attempt.computed.get(name, _UNSET)
        if any(value is _UNSET for value in now):
            new = _UNSET
        else:
            trigger = next(
                one
                for one, new, old in zip(_tuple(self._fields[name].sources), now, before, strict=True)
                if not same(new, old)
            )
            new = self._compute(attempt, name, trigger, now, version)
        if same(new, old):
            return False
        if new is _UNSET:
            del attempt.computed[name]
            self.world.remove(f"computed.{name}")
        else:
            attempt.computed[name] = new
            self.world.set(f"computed.{name}", new)
        return True

    def _compute(self, attempt: _Attempt, name: str, trigger: str, inputs: list[Any], version: int) -> Any:
        computed, compiled = self._fields[name], self._compiled[name]
        given = inputs[0] if isinstance(computed.sources, str) else inputs
        at, begin = time.time(), self._timer()
        error: ExpressionError | None = None
        output = _UNSET
        try:
            bind = {"input": compiled.inputs}
            output, check = self.world.run(compiled.transform, bind=bind), compiled.validate
            if check and not truthy(self.world.run(check, {"output": output}, bind=bind)):
                raise ExpressionError(f"its value fails `{check.source.strip()}`", kind="value")
        except ExpressionError as raised:
            error = raised
            output = computed.fallback if computed.on_error == "use_fallback" else _UNSET
        duration_ms = (self._timer() - begin) * 1000
        shown = None if output is _UNSET else glimpse(output)
        problem = str(error) if error else None
        attempt.trace.append(Transformation(name, at, trigger, glimpse(given), shown, duration_ms, problem, version))
        if error and computed.on_error == "propagate":
            raise _of_field(name, error) from None
        return output


def _at(sections: dict[str, Any], computed: dict[str, Any], source: FieldSource) -> Any:
    values = computed if source.section == "computed" else sections[source.section]
    return paths.get(values, (source.name, *source.inner), _UNSET)


def _of_field(name: str, error: ExpressionError) -> ExpressionError:
    message = f"computed field {name!r}: {error.message}"
    return ExpressionError(message, kind=error.kind, line=error.line, column=error.column)


def _tuple(sources: str | Sequence[str]) -> tuple[str, ...]:
    return (sources,) if isinstance(sources, str) else tuple(sources)


@dataclass(frozen=True, slots=True)
class FieldSource:
    """One place that a field reads: a name of a section, and a path inside its value."""

    section: str
    name: str
    inner: paths.Path

    @property
    def key(self) -> str:
        """The name with its section."""
        return f"{self.section}.{self.name}"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What one field needs and who needs it; `computed.x` and `raw.x` alike, in the order of computation."""

    direct: tuple[str, ...]
    transitive: tuple[str, ...]
    dependents: tuple[str, ...]


class Graph:
    """Computed fields by name, with the paths that they read. DependencyError where no order exists."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._texts = {name: tuple(sources) for name, sources in fields.items()}
        self.sources = {name: tuple(_source(name, text) for text in texts) for name, texts in self._texts.items()}
        for name, sources in self.sources.items():
            _check(name, sources, self.sources)
        self.order = _order(self.sources)
        self.position = {name: index for index, name in enumerate(self.order)}
        self._readers: dict[str, list[str]] = {}
        for name in self.order:
            for key in dict.fromkeys(source.key for source in self.sources[name]):
                self._readers.setdefault(key, []).append(name)

    def readers(self, key: str) -> Sequence[str]:
        """The fields that read `raw.x`, `state.x` or `computed.x`, or something inside it."""
        return self._readers.get(key, ())

    def dependencies(self, field: str) -> Dependencies:
        """Of `computed.x` (or `x`), and of `raw.x` or `state.x`, which depend on nothing."""
        path = paths.parse(field)
        if path[0] in SECTIONS and len(path) > 1:
            section, name = str(path[0]), str(path[1])
        else:
            section, name = "computed", str(path[0])
        if section == "computed" and name not in self.sources:
            raise DependencyError(f"there is no computed field {name!r}; there are: {_listed(self.order)}", name)
        direct = self._texts[name] if section == "computed" else ()
        return Dependencies(direct, self._transitive(direct), self._dependents(f"{section}.{name}"))

    def _transitive(self, direct: Iterable[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        waiting = list(reversed(list(direct)))
        while waiting:
            text = waiting.pop()
            if text in found:
                continue
            found[text] = None
            path = paths.parse(text)
            if path[0] == "computed":
                waiting += reversed(self._texts[str(path[1])])
        return tuple(found)

    def _dependents(self, key: str) -> tuple[str, ...]:
        found: set[str] = set()
        waiting = [key]
        while waiting:
            for reader in self.readers(waiting.pop()):
                if reader not in found:
                    found.add(reader)
                    waiting.append(f"computed.{reader}")
        return tuple(f"computed.{name}" for name in sorted(found, key=self.position.__getitem__))


def _source(field: str, text: str) -> FieldSource:
    try:
        path = paths.parse(text)
    except paths.PathError as error:
        raise DependencyError(f"computed field {field!r}: {error}", field) from None
    if len(path) < 2 or path[0] not in SECTIONS or not isinstance(path[1], str):
        hint = f"say where {text!r} is: raw.…, state.… or computed.…"
        raise DependencyError(f"computed field {field!r}: {hint}", field)
    return FieldSource(str(path[0]), path[1], path[2:])


def _check(name: str, sources: Sequence[FieldSource], known: Mapping[str, object]) -> None:
    if not sources:
        raise DependencyError(f"computed field {name!r} reads nothing: `from` is empty", name)
    for source in sources:
        if source.section == "computed" and source.name not in known:
            raise DependencyError(
                f"computed field {name!r}: there is no computed field {source.name!r}; there are: {_listed(known)}",
                name,
            )


def _order(fields: Mapping[str, Sequence[FieldSource]]) -> tuple[str, ...]:
    """The fields, each behind those that it reads."""
    read = {name: [one.name for one in sources if one.section == "computed"] for name, sources in fields.items()}
    try:
        return tuple(TopologicalSorter(read).static_order())
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]
        first = circle.index(next(name for name in fields if name in circle))  # the one that is declared first
        circle = [*circle[first:], *circle[: first + 1]]
        raise DependencyError(f"computed fields depend on each other: {' → '.join(circle)}", circle[0]) from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
