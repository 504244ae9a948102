"""Decides which HTTP requests a local server accepts: by their Host, their Origin and their token.

A browser sends requests for any page to any address. So a page of another site is refused, and so is a foreign name
that was made to resolve to this machine (DNS rebinding). Standard library only.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9a-f]*:[0-9a-f:.]*)\]|(?P<name>[^\[\]:]+))(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """How a refused request is answered."""

    status: int
    reason: str
    # A refused client does not keep its connection.
    headers: dict[str, str] = field(default_factory=lambda: {"Connection": "close"})


class HttpGuard:
    """Accepts requests that call the server by its own name, come from no other page, and have the token, if any."""

    def __init__(self, host: str, token: str | None) -> None:
        """ConfigError where other machines reach the host and there is no token."""
        if token is None and not _is_loopback(host):
            raise ConfigError(f"HTTP on {host} needs a token: set http_token, or listen on 127.0.0.1")
        self._names = {"localhost", "127.0.0.1", "::1", host.strip("[]").lower(), socket.gethostname().lower()}
        # A server on every address cannot know them all. An address is as good as a name here: what is refused is a
        # foreign name that was made to resolve to this machine.
        self._any_address = host in ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here
        self._expected = None if token is None else f"Bearer {token}".encode()

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> HttpRefusal | None:
        """The answer to a request with these headers (names in lower case) that is refused; None: it is accepted."""
        given: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            given.setdefault(name, []).append(value)
        hosts = [value.decode("latin-1").lower() for value in given.get(b"host", [])]
        if len(hosts) != 1 or not self._is_own_name(hosts[0]):
            return HttpRefusal(421, "this server has another name")
        origins = [value.decode("latin-1").lower() for value in given.get(b"origin", [])]
        if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
            return HttpRefusal(403, "requests from pages of other origins are refused")
        # In constant time: how long a refusal takes must not show how much of the token was right.
        token = given.get(b"authorization", [b""])
        if self._expected is not None and not (len(token) == 1 and hmac.compare_digest(token[0], self._expected)):
            return HttpRefusal(401, "a token is required", {"WWW-Authenticate": "Bearer", "Connection": "close"})
        return None

    def _is_own_name(self, authority: str) -> bool:
        """`host:port`, or `[address]:port` for IPv6."""
        found = _AUTHORITY.fullmatch(authority)
        name = found and (found["address"] or found["name"])
        return name is not None and (name in self._names or (self._any_address and _is_address(name)))


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
