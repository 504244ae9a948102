"""One run that a client started, from the call to the result: it outlives the request, and the connection too.

A request only attends to it. The question of a run is answered by whoever attends; in the stateless era that is a
later request, which finds the call again by a token.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from sidecar.errors import REPORTED
from sidecar.mcp_server.progress import Sender, Story
from sidecar.model import ulid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.mcp_server.port import Ask, Json, Tell
    from sidecar.model.events import RunEvent

logger = logging.getLogger(__name__)
ANSWER_WITHIN_S = 3600.0  # a person who has not answered by then is not there: the run pauses
_MOST_OPEN = 1024


@dataclass(slots=True)
class Question:
    """What a run asks, and where the answer goes."""

    question: Json
    problem: str | None
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: str | None = None

    def give(self, answer: str | None) -> None:
        """Answer it; None: nobody does. The first answer counts."""
        if not self.answered.is_set():
            self.answer = answer
            self.answered.set()


class Call:
    """What is known of a run that a client started here."""

    def __init__(self, story: Story, *, detached: bool, heard: Callable[[RunEvent], None]) -> None:
        self.story = story
        self.detached = detached
        self.sender: Sender | None = None  # of the request that attends now
        self.result: Json | None = None
        self.error: Exception | None = None
        self.question: Question | None = None
        self._heard = heard
        self._turn = anyio.Event()
        self._over = False
        self._attended = True
        self._known = anyio.Event()  # the run's id, or that there will be none

    async def perform(self, start: Callable[[Tell, Ask], Awaitable[Json]]) -> None:
        """Wait for the run, whoever else does; an error is kept for the request."""
        try:
            self.result = await start(self.tell, self.ask)
        except Exception as error:
            self.error = error
        finally:
            self._over = True
            self._known.set()
            self._turn.set()

    def tell(self, event: RunEvent) -> None:
        """An event of the run. Nothing here waits."""
        notes = self.story.notes(event)
        self._known.set()
        self._heard(event)
        if self.sender is not None:
            self.sender.hear(notes)

    async def ask(self, question: Json, problem: str | None) -> str | None:
        """The person's answer; None where none comes, and the run then pauses."""
        if not self._attended:
            return None
        self.question = asked = Question(question, problem)
        self._turn.set()
        with anyio.move_on_after(ANSWER_WITHIN_S):
            await asked.answered.wait()
        if self.question is asked:
            self.question = None
        return asked.answer

    async def turn(self) -> Question | None:
        """Wait until the run asks something or is over (None)."""
        self._attended = True
        while not self._over:
            if self.question is not None and not self.question.answered.is_set():
                return self.question
            self._turn = anyio.Event()
            await self._turn.wait()
        return None

    def left(self) -> None:
        """Nobody attends any more: a question that is open, or will be, gets no answer here."""
        self._attended = False
        if self.question is not None:
            self.question.give(None)

    async def abort(self, abort: Callable[[str, str | None], Awaitable[Json]], reason: str) -> None:
        """End the run: the caller took the call back. Where it has not told its id yet, as soon as it does."""
        await self._known.wait()
        if self._over or self.story.run_id is None:
            return
        try:
            await abort(reason, self.story.run_id)
        except REPORTED as error:
            logger.warning("cannot abort run %s for its caller: %s", self.story.run_id, error)


class OpenCalls:
    """The calls whose question a client is answering now, in the stateless era: by token, the oldest go first."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, Call] = OrderedDict()

    def keep(self, call: Call) -> str:
        """A token that finds the call again, and says which run it is of should the server not be the same any more."""
        token = f"{secrets.token_urlsafe(18)}.{call.story.run_id or ''}"
        self._calls[token] = call
        while len(self._calls) > _MOST_OPEN:
            self._calls.popitem(last=False)[1].left()
        return token

    def take(self, token: str) -> Call | None:
        """The call of a token, once."""
        return self._calls.pop(token, None)

    def leave(self, tokens: set[str]) -> None:
        """The client that held these tokens is gone."""
        for token in tokens:
            call = self._calls.pop(token, None)
            if call is not None:
                call.left()


def run_of(token: str) -> str | None:
    """The run that a token is of; None for one that no server gave."""
    run_id = token.rpartition(".")[2]
    return run_id if ulid.is_valid(run_id) else None
