"""Every exception that sidecar raises on purpose; the message is for the person who has to act on it."""


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
    `column` count from 1 inside the expression, None where nobody knows.
    """

    def __init__(self, message: str, *, kind: str, line: int | None = None, column: int | None = None) -> None:
        place = f" (line {line}, column {column})" if line is not None and column is not None else ""
        super().__init__(message + place)
        self.message = message
        self.kind = kind
        self.line = line
        self.column = column
