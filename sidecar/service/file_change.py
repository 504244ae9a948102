"""Changes a file that another program or a person also edits: with a backup, and all at once or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from dataclasses import dataclass

from sidecar import layout
from sidecar.errors import ConfigError

_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of a file of another program: all at once or not at all. `before` is None if there is no file yet."""

    path: str
    before: str | None
    after: str

    def write(self) -> str | None:
        """Write it; the path of the backup, if there was a file.

        The program whose file this is may write it at any time, so what was read is compared once more.
        """
        if self.after == self.before:
            return None
        target = os.path.realpath(self.path)  # such files are often links to a directory of dotfiles
        try:
            layout.make_directory(os.path.dirname(target))
            backup = None if self.before is None else _backup(target, self.before)
            if read(self.path) != self.before:
                if backup is not None:
                    os.unlink(backup)
                raise ConfigError(f"{self.path} was changed by another program just now; try again")
            _replace(target, self.after)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None
        return backup


def read(path: str) -> str | None:
    """The text of a file; None if there is none."""
    try:
        with open(path, "rb", opener=layout.open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is not a regular file")
            return file.read().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}") from None


def _backup(path: str, text: str) -> str:
    """A copy beside it. It may hold keys, so others cannot read it before it has the file's own mode."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 100):
        backup = f"{path}.backup-{stamp}" + (f"-{number}" if number > 1 else "")
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        except FileExistsError:
            continue
        _fill(descriptor, text, path)
        return backup
    raise ConfigError(f"there are too many backups of {path}")


def _replace(path: str, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".sidecar-", dir=os.path.dirname(path))
    try:
        _fill(descriptor, text, path)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _fill(descriptor: int, text: str, like: str) -> None:
    """Write it, with the owner and the mode that the file `like` has, or those of any new file."""
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        try:
            model = os.stat(like)
        except FileNotFoundError:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o644 & ~mask)
        else:
            try:
                os.fchown(file.fileno(), model.st_uid, model.st_gid)
            except OSError:  # only root may give files away
                pass
            os.fchmod(file.fileno(), stat.S_IMODE(model.st_mode))
        os.fsync(file.fileno())
