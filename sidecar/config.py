"""Settings: defaults < user file < project file < SIDECAR_* variables < flags. Frozen once loaded."""

from __future__ import annotations

import json
import os
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sidecar import layout
from sidecar.errors import ConfigError
from sidecar.model import duration

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK = "********"
_PREFIX = "SIDECAR_"
_SHORTEST_SECRET = 6


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
        "auto", description="What holds an agent's process tree together; `auto` is the best that works here."
    )
    legacy_abort_text: bool = Field(
        True,
        description="Whether an answer whose last line begins with `ABORT ERROR` aborts the run. Deprecated.",
    )
    mcp_servers: dict[str, dict[str, Any]] = Field(
        {}, description="MCP servers for `mcp_call`, as `.mcp.json` has them under `mcpServers`; these come first."
    )
    keep_runs: int = Field(200, ge=1, description="How many completed runs the journal keeps.")
    keep_days: float = Field(30, gt=0, description="How many days it keeps any run that is over.")
    notify: Annotated[tuple[Notify, ...], BeforeValidator(_from_json)] = Field(
        (), description="Whom to tell of runs that wait, end, or reach a milestone: desktop, ntfy, webhook, command."
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
        False, description="Whether `sidecar daemon --http` tells numbers for Prometheus, at /metrics."
    )
    metrics_file: str | None = Field(
        None, description="A file that the daemon keeps those numbers in, for node_exporter; relative to the root."
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^(https?://|\$\w+$)",
        description="Where spans of runs and steps go, by OTLP over HTTP: `http://127.0.0.1:4318`, or a $VARIABLE.",
    )
    otlp_headers: Annotated[dict[str, str], BeforeValidator(_from_json)] = Field(
        {}, description="Headers that go with them; a value can be a $VARIABLE."
    )
    take_over_after: Annotated[str, BeforeValidator(_duration)] = Field(
        "30m", description="How old a step in an outside agent's hands is before `resume` takes it without --take-over."
    )
    hand_over_within: Annotated[str, BeforeValidator(_duration)] = Field(
        "60s", description="How long `--detach` waits until somebody executes the run."
    )
    lease_s: float = Field(
        900, gt=0, description="How long a sub-agent may be silent before its step is given to another."
    )
    secrets: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GITHUB_TOKEN", "GH_TOKEN"),
        description="Names of environment variables whose values never appear in logs and events.",
    )

    def secret_values(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """What is to be masked. A value of a few characters would take half the log along, and is no secret."""
        values = (environment.get(name, "") for name in self.secrets)
        return tuple(value for value in values if len(value) >= _SHORTEST_SECRET)

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
    safe = _checked({"safe_projects": said.get("safe_projects", ())}, "settings").safe_projects
    if any(one == "*" or os.path.realpath(os.path.expanduser(one)) == root for one in safe):
        return
    raise ConfigError(
        f"{place} belongs to another user, whose commands would run as you; if you trust them, set "
        f"SIDECAR_SAFE_PROJECTS={root}, or `safe_projects: [{root}]` in {layout.user_config()}"
    )


def read(root: str, environment: Mapping[str, str], **flags: object) -> Settings:
    """The settings that hold in a project, only to look at them."""
    settings: dict[str, Any] = {}
    for path in (layout.user_config(), layout.project_config(root)):
        settings.update(_from_file(path))
    settings.update(_from_environment(environment))
    settings.update({name: value for name, value in flags.items() if value is not None})
    return _checked(settings, "settings")


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


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8", opener=layout.open_at_once) as file:
            content = yaml.safe_load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except Exception as error:  # not YAMLError alone: PyYAML raises ValueError or KeyError for `2026-99-99`, `!!bool x`
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a settings file is a mapping, `name: value` on each line")
    _checked(content, path)
    return content


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that name a setting. Others with our prefix (SIDECAR_PROJECT, SIDECAR_RUN_ID) are not settings."""
    named = {name: environment.get(_PREFIX + name.upper()) for name in Settings.model_fields}
    return {name: value for name, value in named.items() if value}


def _checked(values: dict[str, Any], where: str) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            known = (Settings if len(problem["loc"]) == 1 else Notify).model_fields
            near = get_close_matches(str(problem["loc"][-1]), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(sorted(known))}"
            raise ConfigError(f"{where}: unknown setting {name!r}; {hint}") from None
        raise ConfigError(f"{where}: {name}: {problem['msg'].removeprefix('Value error, ')}") from None
