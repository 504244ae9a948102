"""A POST that nothing ever waits for longer than it wants to: not the event loop, and not the end of the process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
from anyio import from_thread, lowlevel

from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 5.0


class Poster:
    """Posts to one address, one at a time."""

    def __init__(self) -> None:
        self._is_busy = False

    async def post(self, url: str, data: bytes, headers: Mapping[str, str]) -> None:
        """SidecarError: it did not arrive, and why; the address, which may be a secret, is not in there."""
        if self._is_busy:  # given up, but its thread is not to be ended
            raise SidecarError("the last one has not been answered yet")
        token, done = lowlevel.current_token(), anyio.Event()
        problems: list[str] = []

        def work() -> None:
            problem = _posted(url, data, headers)
            if problem:
                problems.append(problem)
            self._is_busy = False
            try:
                from_thread.run_sync(done.set, token=token)
            except anyio.RunFinishedError:  # nobody waited
                return

        # Not one of the loop's workers: those are joined at the end, and a name server that does not answer, which
        # no timeout reaches, would keep the whole process.
        self._is_busy = True
        threading.Thread(target=work, name="notify", daemon=True).start()
        await done.wait()
        if problems:
            raise SidecarError(problems[0])


def _posted(url: str, data: bytes, headers: Mapping[str, str]) -> str | None:
    """What went wrong, if anything did."""
    from http.client import HTTPException, InvalidURL  # noqa: PLC0415 - only for those who have it set
    from urllib import error, request  # noqa: PLC0415

    class Refusing(request.HTTPRedirectHandler):
        """Not followed: it would carry the token to somebody else."""

        def redirect_request(self, *_: object) -> None:
            return None

    opener = request.build_opener(Refusing)
    try:
        address, login = _apart(url)
        wanted = request.Request(address, data, {**login, **headers}, method="POST")  # noqa: S310 - http or https
        with opener.open(wanted, timeout=_TIMEOUT_S) as answer:
            answer.read(1)
    except error.HTTPError as failed:
        return f"HTTP {failed.code} {failed.reason}"
    except error.URLError as failed:
        return str(failed.reason)
    except (InvalidURL, ValueError):  # their texts quote the part that is wrong, and that may be the secret one
        return "the address is not one that can be called"
    except (OSError, HTTPException) as failed:
        return f"{type(failed).__name__}: {failed}".replace(url, "URL")
    return None


def _apart(url: str) -> tuple[str, dict[str, str]]:
    """The address without the name and password in it, which urllib takes for a host, and the header that has them."""
    import base64  # noqa: PLC0415
    from urllib import parse  # noqa: PLC0415

    parts = parse.urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    header = base64.b64encode(parse.unquote(login).encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {header}"}
