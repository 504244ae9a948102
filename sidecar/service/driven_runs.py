"""The runs that agents drive through this process: those asked for lately are kept open, the journal has the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.agent_driven import AgentDriven

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.engine.owner import Owner
    from sidecar.model.events import RunEvent

# A run that is open holds its state, here and in the evaluator. Nobody says that a driver has gone away, so in a
# process that lives for weeks the ones left behind would be most of its memory.
_KEPT_OPEN = 100


class DrivenRuns:
    """Each run has one driver at a time; those that nobody asked for in a long while are closed."""

    def __init__(self, owner: Owner, hear: Callable[[RunEvent], None], kept_open: int = _KEPT_OPEN) -> None:
        self._owner = owner
        self._hear = hear
        self._kept_open = kept_open
        self._drivers: dict[str, AgentDriven] = {}  # who was asked last stands last

    def driver(self, run_id: str) -> AgentDriven:
        """The run, to be driven at once: who waits first may find that it was closed meanwhile."""
        driver = self._drivers.pop(run_id, None) or AgentDriven(self._owner, run_id, self._hear)
        for other in list(self._drivers):
            if len(self._drivers) < self._kept_open:
                break
            if self._drivers[other].let_go():
                del self._drivers[other]
        self._drivers[run_id] = driver
        return driver

    def close(self, run_id: str) -> None:
        """What is open of the run is out of date. A call that is under way finds that out from the journal."""
        driver = self._drivers.pop(run_id, None)
        if driver is not None and not driver.let_go():
            self._drivers[run_id] = driver
