"""Every exception that sidecar raises on purpose; the message is for the person who has to act on it."""


class SidecarError(Exception):
    """Something went wrong that a person can mend; `str()` of it is one line that says what and how."""


class ConfigError(SidecarError):
    """A settings file or variable holds something that is not a setting."""


class SignalError(SidecarError):
    """A signal cannot be written, found or cleared."""
