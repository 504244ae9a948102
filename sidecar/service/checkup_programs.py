"""The programs that a project needs: the agents it can call, with their versions, and the service manager."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import anyio

from sidecar.agents import containment
from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.supervisor import Launch, Supervisor
from sidecar.catalog import agents
from sidecar.errors import AgentFailed, SidecarError
from sidecar.service.finding import DoctorFinding, fine, note, problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.catalog.agents import CatalogAgent
    from sidecar.config import Settings

_ANSWER_S = 10.0
_GRACE_S = 0.5
_SYSTEMD = "/run/systemd/system"  # there while systemd is what runs the machine
_UNITS = "sidecar*"


def containment_in_force(settings: Settings) -> Iterator[DoctorFinding]:
    """What holds an agent's processes together."""
    try:
        report = containment.report(settings.containment)
    except SidecarError as error:
        yield problem("containment", str(error), "set `containment: auto`")
        return
    yield fine("containment", f"{report.name}" + (" (as set)" if report.forced else ""))
    for name, why in report.why_not_better:
        yield note("containment", f"not {name}: {why}")
    yield fine("containment", f"cannot catch: {report.cannot_catch}")


async def agents_and_service(root: str, settings: Settings, environment: Mapping[str, str]) -> list[DoctorFinding]:
    """Both at once: each asks a program, and some take their time to answer."""
    known, unusable = agents.listing(root)
    found: list[list[DoctorFinding]] = [[] for _ in range(len(known) + 1)]

    async def look_at(place: int) -> None:
        if place < len(known):
            found[place] = [await _agent(asking, known[place], settings.default_agent)]
        else:
            found[place] = await _service(asking)

    async with Supervisor(root, containment=settings.containment) as supervisor, anyio.create_task_group() as tasks:
        asking = _Asking(supervisor, root, environment)
        for place in range(len(found)):
            tasks.start_soon(look_at, place)
    doubtful = [note("agents", doubt) for agent in known for doubt in agents.doubts(agent)]
    broken = [problem("agents", text, "mend the file, or remove it") for text in unusable]
    if settings.default_agent not in [agent.name for agent in known]:
        text = f"default_agent is {settings.default_agent!r}, and there is no such agent"
        broken.append(problem("agents", text, "`sidecar agent list` names those that there are"))
    return [*(finding for findings in found[:-1] for finding in findings), *doubtful, *broken, *found[-1]]


class _Asking:
    """Runs programs that answer in a line or two."""

    def __init__(self, supervisor: Supervisor, root: str, environment: Mapping[str, str]) -> None:
        self.root = root
        self.environment = environment
        self._supervisor = supervisor

    async def said(self, *argv: str) -> tuple[int | None, list[str]]:
        """The exit code, None where it cannot be run or does not end; and its lines."""
        launch = Launch(argv=argv, cwd=self.root, starter_env=self.environment, kill_after_s=_GRACE_S)
        with anyio.move_on_after(_ANSWER_S):
            try:
                ended = await self._supervisor.run(launch)
            except AgentFailed as error:
                return None, [str(error).partition(": ")[2]]
            return ended.exit_code, [line.strip() for line in ended.tail.splitlines() if line.strip()]
        return None, [f"no answer within {_ANSWER_S:g} s"]


async def _agent(asking: _Asking, agent: CatalogAgent, default: str) -> DoctorFinding:
    definition = agent.definition
    if isinstance(definition.command, str):
        return fine("agents", f"{agent.name}: the caller says what to run")
    try:
        assignment = definition.assign(agent.name, {one.name: "" for one in definition.declared})
        call = ADAPTERS[definition.adapter].invocation(assignment, cwd=asking.root, environment=asking.environment)
    except AgentFailed as error:
        text = f"{agent.name}: {str(error).partition(': ')[2]}"
        if agent.name == default:
            text = f"{text} (it does what names no other agent)"
            return problem("agents", text, "install it, or set `default_agent` to one that is there")
        return note("agents", text)
    program = call.argv[0]
    if definition.adapter == "command":  # nobody knows what it would make of `--version`
        return fine("agents", f"{agent.name}: {program}")
    code, lines = await asking.said(program, "--version")
    said = lines[0][:80] if lines else ""
    if code != 0:
        advice = f"see what `{program} --version` says"
        return problem("agents", f"{agent.name}: {program} does not work: {said or f'exit code {code}'}", advice)
    return fine("agents", f"{agent.name}: {said}, {program}")


async def _service(asking: _Asking) -> list[DoctorFinding]:
    if not _has_systemd(asking.environment):
        return [fine("service", "no systemd runs this machine")]
    found: list[DoctorFinding] = []
    for words in (("--system",), ("--user",)):
        listing = ("list-units", "--all", "--plain", "--no-legend", "--no-pager", _UNITS)
        code, lines = await asking.said("systemctl", *words, *listing)
        for unit in [line.split() for line in lines if len(line.split()) >= 4] if code == 0 else []:
            name, state = unit[0], f"{unit[2]} ({unit[3]})"
            if "failed" in unit[2:4]:
                advice = f"journalctl {words[0]} -u {name}"
                found.append(problem("service", f"{name} {words[0]}: {state}", advice))
            else:
                found.append(fine("service", f"{name} {words[0]}: {state}"))
    return found or [fine("service", "sidecar is not installed as a service (`sidecar service install`)")]


def _has_systemd(environment: Mapping[str, str]) -> bool:
    return os.path.isdir(_SYSTEMD) and shutil.which("systemctl", path=environment.get("PATH")) is not None
