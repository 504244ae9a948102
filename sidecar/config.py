"""Settings: defaults < user file < project file < SIDECAR_* variables < flags. Frozen once loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sidecar import layout
from sidecar.errors import ConfigError
from sidecar.model import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

MASK = "********"
_PREFIX = "SIDECAR_"
_SHORTEST_SECRET = 6
_WORDS = {  # by how the validator's own words for it begin: string_type, bool_parsing, int_from_float
    "string": "has to be text; put it in quotes",
    "bool": "has to be true or false",
    "int": "has to be a whole number",
    "float": "has to be a number",
    "finite": "has to be a number",
    "tuple": "has to be a list",
    "dict": "has to be a mapping, `name: value` on each line",
    "model": "has to be a mapping, `name: value` on each line",
    "missing": "is missing",
    "too": "must not be empty",
    "invalid": "is no name of a setting",
}


def _words(value: object) -> object:
    """A variable holds a list as words with commas between them."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _from_json(value: object) -> object:
    """A variable holds what is neither a word nor a list of words as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("as a variable it is JSON, and this is not") from None


def _duration(value: object) -> object:
    """A duration, kept as it was written."""
    duration.seconds(value)
    return str(value)


_Duration = Annotated[str, BeforeValidator(_duration)]


class Notify(BaseModel):
    """One way in which people are told of what happens to runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["desktop", "ntfy", "webhook", "command"]
    # Of `url` and `token`, one that begins with `$` names the environment variable that has it: both are secrets.
    url: str | None = Field(None, pattern=r"^(https?://|\$\w+$)")
    token: str | None = None
    command: tuple[str, ...] | None = Field(None, min_length=1)
    events: tuple[Literal["started", "waiting", "stopped", "aborted", "failed", "completed", "milestone"], ...] = (
        "waiting",
        "stopped",
        "aborted",
        "failed",
        "completed",
    )
    every: int = Field(10, ge=1)  # iterations between two milestones

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needs = {"desktop": None, "ntfy": "url", "webhook": "url", "command": "command"}[self.type]
        for name in ("url", "command"):
            if (getattr(self, name) is not None) != (name == needs):
                raise ValueError(f"type {self.type!r} {'needs' if name == needs else 'has no'} {name!r}")
        if self.token is not None and self.type != "ntfy":
            raise ValueError("only type 'ntfy' has a 'token'")
        return self


class Settings(BaseModel):
    """Every setting there is, with what holds where nobody says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workspaces_dir: str | None = Field(None, description="Where workspaces are; relative to the project's root.")
    watcher: Literal["auto", "inotify", "watchdog", "polling"] = Field(
        "auto", description="How signal files are noticed at once; `auto` is inotify on Linux, watchdog elsewhere."
    )
    default_agent: str = Field("claude", description="The agent that does what names no other.")
    kill_after_s: float = Field(5.0, ge=0, le=3600, description="Grace between asking a process to end and killing it.")
    containment: Literal["auto", "cgroup", "reaper", "sweep"] = Field(
        "auto", description="How an agent's processes are found and ended; `auto` is the best way that works here."
    )
    legacy_abort_text: bool = Field(
        True,
        description="Whether an answer whose last line begins with `ABORT ERROR` aborts the run. Deprecated.",
    )
    agent_signals: Literal["run", "project"] = Field(
        "run",
        description="What the agents of a run may stop and abort over MCP: their own run, or whatever they name.",
    )
    mcp_servers: dict[str, dict[str, Any]] = Field(
        {}, description="MCP servers for `mcp_call`, as `.mcp.json` has them under `mcpServers`; these come first."
    )
    keep_runs: int = Field(200, ge=1, description="How many completed runs the journal keeps.")
    keep_days: float = Field(30, gt=0, description="How many days it keeps any run that has ended.")
    notify: Annotated[tuple[Notify, ...], BeforeValidator(_from_json)] = Field(
        (),
        description="Where to send notifications about runs that wait, end or reach a milestone.",
    )
    projects: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        (), description="The projects that `sidecar daemon` is for, where its command line names none."
    )
    http_token: str | None = Field(
        None,
        min_length=16,
        description="What clients of `sidecar daemon --http` have to show.",
    )
    safe_projects: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        (), description="Projects of other users that are trusted, `*` for all; not from a project's own file."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What `sidecar daemon` says: this, and what is worse."
    )
    metrics: bool = Field(
        False, description="Whether `sidecar daemon --http` serves metrics for Prometheus, at /metrics."
    )
    metrics_file: str | None = Field(
        None, description="A file that the daemon writes them to, for node_exporter; relative to the root."
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^(https?://|\$\w+$)",
        description="Where spans of runs and steps go, by OTLP over HTTP: `http://127.0.0.1:4318`, or a $VARIABLE.",
    )
    otlp_headers: Annotated[dict[str, str], BeforeValidator(_from_json)] = Field(
        {}, description="Headers that go with them; a value can be a $VARIABLE."
    )
    take_over_after: _Duration = Field(
        "30m", description="How old a step in an outside agent's hands is before `resume` takes it without --take-over."
    )
    hand_over_within: _Duration = Field("60s", description="How long `--detach` waits until the run is executed.")
    secrets: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GITHUB_TOKEN", "GH_TOKEN"),
        description="Names of environment variables whose values are masked in logs, events, reasons and receipts.",
    )

    def secret_values(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """What is to be masked. A value of a few characters would take half the log along, and is no secret."""
        values = (environment.get(name, "") for name in self.secrets)
        return tuple(value for value in values if len(value) >= _SHORTEST_SECRET)

    def doubts(self) -> list[str]:
        """Durations that say milliseconds where seconds were probably meant."""
        told = {name: duration.doubt(getattr(self, name)) for name in ("take_over_after", "hand_over_within")}
        return [f"`{name}`: {doubt}" for name, doubt in told.items() if doubt is not None]

    def shown(self) -> dict[str, Any]:
        """All of them as JSON, without what nobody should read over a shoulder or in a report."""
        values = self.model_dump(mode="json")
        values["http_token"] = self.http_token and MASK
        values["otlp_endpoint"] = _masked_url(self.otlp_endpoint)
        values["otlp_headers"] = {name: _masked(value) for name, value in self.otlp_headers.items()}
        for entry in values["notify"]:
            entry["url"], entry["token"] = _masked_url(entry["url"]), _masked(entry["token"])
        for server in values["mcp_servers"].values():
            for key in ("env", "headers"):
                if isinstance(server.get(key), dict):
                    server[key] = {name: _masked(str(value)) for name, value in server[key].items()}
        return values


@dataclass(frozen=True, slots=True)
class Project:
    """Where runs belong, with the settings that hold there, as one process sees it."""

    root: str
    settings: Settings
    environment: Mapping[str, str]


def open_project(option: str | None, environment: Mapping[str, str] | None = None) -> Project:
    """The project that `--project`, SIDECAR_PROJECT or the working directory names."""
    environment = dict(os.environ if environment is None else environment)
    root = layout.find_root(option, environment)
    return Project(root, load(root, environment), environment)


def load(root: str, environment: Mapping[str, str], **flags: object) -> Settings:
    """The settings that hold in a project that may be acted in: whoever starts anything there comes through here."""
    refuse_foreign(root, environment)
    return read(root, environment, **flags)


def refuse_foreign(root: str, environment: Mapping[str, str]) -> None:
    """ConfigError where the project is somebody else's, and the person has not said that it is safe."""
    place = layout.foreign(root, environment)
    if place is None:
        return
    # Not the project's own file: it would say so of itself.
    said = {**_from_file(layout.user_config()), **_from_environment(environment)}
    safe = _checked({"safe_projects": said.get("safe_projects", ())}).safe_projects
    if any(one == "*" or os.path.realpath(os.path.expanduser(one)) == root for one in safe):
        return
    raise ConfigError(
        f"{place} belongs to another user, whose commands would run as you; if you trust them, set "
        f"SIDECAR_SAFE_PROJECTS={root}, or `safe_projects: [{root}]` in {layout.user_config()}"
    )


def read(root: str, environment: Mapping[str, str], **flags: object) -> Settings:
    """The settings that hold in a project, only to look at them. ConfigError has everything that is wrong with them."""
    settings: dict[str, Any] = {}
    problems: list[str] = []
    for path in (layout.user_config(), layout.project_config(root)):
        found = _in_file(path)
        settings.update(found.values)
        problems += found.problems
    given = _from_environment(environment)
    for name, value in given.items():
        variable = _PREFIX + name.upper()
        problems += [".".join(map(str, (variable, *rest))) + f": {text}" for (_, *rest), text in _wrong({name: value})]
    if problems:
        raise ConfigError("; ".join(problems))
    settings.update(given)
    settings.update({name: value for name, value in flags.items() if value is not None})
    return _checked(settings)


def origins(root: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Where the value of each setting comes from: `default`, a file, or a variable."""
    found = dict.fromkeys(Settings.model_fields, "default")
    for path in (layout.user_config(), layout.project_config(root)):
        found.update(dict.fromkeys(_from_file(path), path))
    found.update({name: _PREFIX + name.upper() for name in _from_environment(environment)})
    return found


def _masked(text: str | None) -> str | None:
    """A name of a variable is no secret."""
    return text if text is None or text.startswith("$") else MASK


def _masked_url(url: str | None) -> str | None:
    """Who may post there is who knows the path."""
    if url is None or url.startswith("$"):
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}/{MASK}"


@dataclass(frozen=True, slots=True)
class _File:
    """What a settings file says, and what is wrong with it as `file:line: message`."""

    values: dict[str, Any]
    problems: list[str]


def _from_file(path: str) -> dict[str, Any]:
    found = _in_file(path)
    if found.problems:
        raise ConfigError("; ".join(found.problems))
    return found.values


def _in_file(path: str) -> _File:
    try:
        with open(path, encoding="utf-8", opener=layout.open_at_once) as file:
            text = file.read()
    except FileNotFoundError:
        return _File({}, [])
    except OSError as error:
        return _File({}, [f"cannot read {path}: {error.strerror}"])
    except UnicodeDecodeError as error:
        return _File({}, [f"cannot read {path}: {error}"])
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        content = {} if root is None else loader.construct_document(root)
    except Exception as error:  # not YAMLError alone: PyYAML raises ValueError or KeyError for `2026-99-99`, `!!bool x`
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        said = getattr(error, "problem", None) or error
        return _File({}, [f"{path}{line}: this is not YAML: {' '.join(str(said).split())}"])
    if content is None:
        return _File({}, [])
    if not isinstance(content, dict):
        return _File({}, [f"{path}:1: a settings file is a mapping, `name: value` on each line"])
    wrong = [(line, f"{key!r} is there twice") for key, line in _twice(root)]
    wrong += [(_line(root, location), _named(location, text)) for location, text in _wrong(content)]
    return _File(content, [f"{path}:{line}: {text}" for line, text in sorted(wrong)])


def _twice(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Keys that a mapping has twice: the first would be overridden without a word."""
    seen: set[str] = set()
    for key, _ in node.value if node is not None else ():
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                yield key.value, key.start_mark.line + 1
            seen.add(key.value)


def _line(node: yaml.Node | None, location: Sequence[int | str]) -> int:
    """The line of an entry; of the nearest one around it, where it is not there."""
    line = 1
    for part in location:
        found: tuple[yaml.Node, yaml.Node] | None = None
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in reversed(node.value) if pair[0].value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = (node.value[part], node.value[part])
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that name a setting. Others with our prefix (SIDECAR_PROJECT, SIDECAR_RUN_ID) are not settings."""
    named = {name: environment.get(_PREFIX + name.upper()) for name in Settings.model_fields}
    return {name: value for name, value in named.items() if value}


def _checked(values: dict[str, Any]) -> Settings:
    wrong = [_named(location, text) for location, text in _wrong(values)]
    if wrong:
        raise ConfigError(f"settings: {'; '.join(wrong)}")
    return Settings.model_validate(values)


def _wrong(values: dict[str, Any]) -> list[tuple[tuple[int | str, ...], str]]:
    """Everything that is wrong: where, and in what words."""
    try:
        Settings.model_validate(values)
    except ValidationError as error:
        return [(detail["loc"], _message(detail)) for detail in error.errors(include_url=False)]
    return []


def _named(location: Sequence[int | str], text: str) -> str:
    return text if text.startswith("unknown setting") else f"{'.'.join(map(str, location))}: {text}"


def _message(detail: ErrorDetails) -> str:
    """What is wrong and what would be right. What was given is shown where it cannot be a secret."""
    context, location = detail.get("ctx", {}), detail["loc"]
    match detail["type"]:
        case "extra_forbidden":
            known = (Settings if len(location) == 1 else Notify).model_fields
            near = get_close_matches(str(location[-1]), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(sorted(known))}"
            return f"unknown setting {'.'.join(map(str, location))!r}; {hint}"
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return f"{detail['input']!r} is not {context['expected']}"
        case "string_pattern_mismatch":
            return "has to begin with http:// or https://, or to name a variable: $NAME"
        case "string_too_short":
            return f"has to have {context['min_length']} characters or more"
        case "greater_than" | "greater_than_equal" | "less_than_equal":
            bounds = {"gt": "more than {}", "ge": "{} or more", "le": "{} or less"}
            (bound,) = (text.format(f"{context[key]:g}") for key, text in bounds.items() if key in context)
            return f"has to be {bound}, not {detail['input']!r}"
        case kind if kind.partition("_")[0] in _WORDS:
            return _WORDS[kind.partition("_")[0]]
        case _:
            return str(detail["msg"])
