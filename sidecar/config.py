"""Settings: defaults < user file < project file < SIDECAR_* variables < flags. Frozen once loaded."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sidecar import layout
from sidecar.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "SIDECAR_"
_SHORTEST_SECRET = 6


def _words(value: object) -> object:
    """A variable holds a list as words with commas between them."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


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
    secrets: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GITHUB_TOKEN", "GH_TOKEN"),
        description="Names of environment variables whose values never appear in logs and events.",
    )

    def secret_values(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """What is to be masked. A value of a few characters would take half the log along, and is no secret."""
        values = (environment.get(name, "") for name in self.secrets)
        return tuple(value for value in values if len(value) >= _SHORTEST_SECRET)


def load(root: str, environment: Mapping[str, str], **flags: object) -> Settings:
    """The settings that hold in a project."""
    settings: dict[str, Any] = {}
    for path in (layout.user_config(), layout.project_config(root)):
        settings.update(_from_file(path))
    settings.update(_from_environment(environment))
    settings.update({name: value for name, value in flags.items() if value is not None})
    return _checked(settings, "settings")


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
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            near = get_close_matches(name, Settings.model_fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(sorted(Settings.model_fields))}"
            raise ConfigError(f"{where}: unknown setting {name!r}; {hint}") from None
        raise ConfigError(f"{where}: {name}: {problem['msg']}") from None
