"""Spans go out in batches, beside the run: a collector that is slow or away costs spans, and never anything else."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING

import anyio

from sidecar.errors import SidecarError
from sidecar.notify.channels import Poster
from sidecar.service.tracing import Spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.engine.owner import Owner
    from sidecar.model.events import RunEvent

_PATH = "/v1/traces"
_EVERY_S = 5.0
_AT_THE_END_S = 2.0
_ANSWER_S = 10.0


class Exporter:
    """Sends what is over to the endpoint that the settings name."""

    def __init__(self, owner: Owner, endpoint: str) -> None:
        settings, environment = owner.settings, owner.environment
        self._url = _meant(endpoint, environment).rstrip("/") + _PATH
        self._headers = {name: _meant(value, environment) for name, value in settings.otlp_headers.items()}
        self._report = owner.report
        self._spans = Spans(owner.root, platform.node())
        self._poster = Poster()
        self._works = True

    def hear(self, event: RunEvent) -> None:
        """Take an event; never fails, never waits."""
        self._spans.hear(event)

    async def run(self) -> None:
        """Send every so often, until cancelled."""
        while True:
            await anyio.sleep(_EVERY_S)
            await self._send(_ANSWER_S)

    async def finish(self) -> None:
        """Send what waits, but not for long."""
        await self._send(_AT_THE_END_S)

    async def _send(self, within_s: float) -> None:
        left_out, body = self._spans.left_out, self._spans.take()
        if body is None:
            return
        problem: str | None = f"not within {within_s:g} s"
        with anyio.move_on_after(within_s):
            try:
                headers = {"Content-Type": "application/json", **self._headers}
                await self._poster.post(self._url, json.dumps(body).encode(), headers)
                problem = f"{left_out} were too many at once" if left_out else None
            except SidecarError as error:
                problem = str(error)
        if problem is not None and self._works:  # once, until it works again
            self._report(f"spans do not arrive: {problem}")
        self._works = problem is None


def _meant(text: str, environment: Mapping[str, str]) -> str:
    """The value, or that of the variable that it names."""
    if not text.startswith("$"):
        return text
    value = environment.get(text[1:])
    if not value:
        raise SidecarError(f"tracing needs the variable {text[1:]}, which is not set")
    return value
