"""Which computed field reads what: the order to compute them in, and who has to be looked at after a change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.errors import SidecarError
from sidecar.state import paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SECTIONS = ("raw", "state", "computed")


class DependencyError(SidecarError):
    """Computed fields that cannot be computed in any order, or read what there is not. `field` is the one to mend."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Source:
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


def _source(field: str, text: str) -> Source:
    try:
        path = paths.parse(text)
    except paths.PathError as error:
        raise DependencyError(f"computed field {field!r}: {error}", field) from None
    if len(path) < 2 or path[0] not in SECTIONS or not isinstance(path[1], str):
        hint = f"say where {text!r} is: raw.…, state.… or computed.…"
        raise DependencyError(f"computed field {field!r}: {hint}", field)
    return Source(str(path[0]), path[1], path[2:])


def _check(name: str, sources: Sequence[Source], known: Mapping[str, object]) -> None:
    if not sources:
        raise DependencyError(f"computed field {name!r} reads nothing: `from` is empty", name)
    for source in sources:
        if source.section == "computed" and source.name not in known:
            raise DependencyError(
                f"computed field {name!r}: there is no computed field {source.name!r}; there are: {_listed(known)}",
                name,
            )


def _order(fields: Mapping[str, Sequence[Source]]) -> tuple[str, ...]:
    """Depth first without recursion, so that a long chain is no problem; as declared where there is a choice."""
    done: dict[str, None] = {}
    for start in fields:
        trail = [(start, iter(fields[start]))] if start not in done else []
        on_trail = {start: None}
        while trail:
            name, sources = trail[-1]
            following = next((s.name for s in sources if s.section == "computed" and s.name not in done), None)
            if following is None:
                trail.pop()
                on_trail.pop(name)
                done[name] = None
            elif following in on_trail:
                circle = [*on_trail][[*on_trail].index(following) :]
                raise DependencyError(
                    f"computed fields depend on each other: {' → '.join([*circle, following])}", following
                )
            else:
                on_trail[following] = None
                trail.append((following, iter(fields[following])))
    return tuple(done)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
