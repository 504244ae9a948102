"""Every exception that sidecar raises on purpose; the message is for the person who has to act on it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class SidecarError(Exception):
    """Something went wrong that a person can mend; `str()` of it is one line that says what and how."""


class ConfigError(SidecarError):
    """A settings file or variable holds something that is not a setting."""


class SignalError(SidecarError):
    """A signal cannot be written, found or cleared."""


class AgentFailed(SidecarError):  # noqa: N818 - the contract's name for it
    """An agent could not be started, or the machinery that supervises it broke."""


class ExpressionError(SidecarError):
    """An expression cannot be read, or failed, or gave something that is not data.

    `kind` is `syntax`, `runtime`, `time`, `memory`, `stack` or `value`; `message` is without the place; `line` and
    `column` count from 1 inside the expression, None where unknown.
    """

    def __init__(self, message: str, *, kind: str, line: int | None = None, column: int | None = None) -> None:
        place = f" (line {line}, column {column})" if line is not None and column is not None else ""
        super().__init__(message + place)
        self.message = message
        self.kind = kind
        self.line = line
        self.column = column


class TemplateError(ExpressionError):
    """A text with `{{ }}` cannot be read or rendered; `offset` is the place in that text."""

    def __init__(self, message: str, offset: int, *, kind: str = "syntax") -> None:
        super().__init__(message, kind=kind)
        self.offset = offset


class ShellError(SidecarError):
    """A command cannot be made safe with the values it has."""


class Problem(str):
    """One thing that is wrong with a definition: `file:line: message` for people, its parts for programs."""

    path: str
    line: int
    column: int
    message: str

    @classmethod
    def at(cls, path: str, place: tuple[int, int], message: str) -> Problem:
        """A problem at a line and column, both counted from 1."""
        problem = cls(f"{path}:{place[0]}: {message}")
        problem.path, (problem.line, problem.column), problem.message = path, place, message
        return problem


class DefinitionError(SidecarError):
    """A definition is wrong; `problems` has every one of them as `file:line: message`."""

    def __init__(self, problems: list[Problem] | tuple[Problem, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class DefinitionChanged(SidecarError):  # noqa: N818 - the name says it
    """A run cannot be resumed with this definition: the step where it stands is not there any more."""


class StepFailed(SidecarError):  # noqa: N818 - the contract's name for it
    """A step failed; `error` is what `error` is in expressions: a `message`, and what else is known of it."""

    def __init__(self, message: str, **known: object) -> None:
        super().__init__(message)
        self.error: dict[str, object] = {"message": message, **known}


class NotFound(SidecarError):  # noqa: N818 - the name says it
    """No workflow, prompt or agent has that name."""


class InputError(SidecarError):
    """What a caller gave is not what the definition asks for."""


class StoreError(Exception):
    """The journal cannot be read or written, or refuses what would make it wrong. Nothing of the transaction is kept.

    It is no SidecarError: nothing in a workflow may catch it.

    `kind` is `locked`, `full`, `forbidden`, `removed`, `damaged`, `newer`, `io`, `closed` (about the database), or
    `conflict`, `missing`, `value` (about what was asked).
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class JournalLocked(StoreError):  # noqa: N818 - the name says it
    """Another process has the journal locked. Nothing of the transaction was begun: it can be tried again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="locked")


REPORTED = (SidecarError, StoreError)  # the command line and MCP print these as one line, without a traceback


def unwrapped(error: Exception) -> Exception:
    """An error without the groups of one that task groups have put around it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class UnwrappedErrors:
    """A context around a task group: an error of its body or of a task is raised as it is, not in an exception group.

    A class, because importing contextlib would slow down the start of `sidecar stop`.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, ExceptionGroup) and (cause := unwrapped(error)) is not error:
            raise cause from cause.__cause__
