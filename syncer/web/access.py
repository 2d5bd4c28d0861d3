"""Access: what a request may have.

Guarantees: a page of another site, open in the same browser, gets nothing and does nothing: it cannot send the header
that a token travels in, a name that it lets lead to this address is not ours, and what a browser says it sends for
another site is refused. Tokens are compared in a time that says nothing of them.

    from this machine        no token set    token set, not sent    token sent
    page, metrics, health    yes             yes                    yes
    FACTS                    yes             yes                    yes
    ROWS                     no values       no                     yes
    ACTIONS                  no              no                     yes

Where others can reach it, FACTS need the token as well.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from enum import Enum, auto

from werkzeug.datastructures import Headers

from syncer.errors import SyncerError

_SCHEME = "bearer "
_OWN_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
_OWN_SITES = frozenset({"same-origin", "none"})


class Need(Enum):
    """What is asked for."""

    NOTHING = auto()
    """What everybody may have: the page without any numbers, metrics, health."""
    FACTS = auto()
    """Numbers and names: how syncer is doing."""
    ROWS = auto()
    """Which documents, by their ids; with the token also what is in them."""
    ACTIONS = auto()
    """To change something."""


class ForbiddenError(SyncerError):
    """The request may not have what it asks for, whoever sends it."""


class UnauthorizedError(SyncerError):
    """The request may have what it asks for with the token, and came without it or with another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may do what.

    Args:
        host: Where the server listens.
        token: The token; None if none is set.
    """

    host: str
    token: str | None

    @property
    def is_own(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)

    def require_ours(self, headers: Headers, *, is_page: bool = False) -> None:
        """Refuse what a browser sends for another site; a link there may lead to the page, which holds nothing as yet.

        Args:
            headers: Of the request.
            is_page: Whether it is for the page itself.

        Raises:
            ForbiddenError: It does.
        """
        host = _name(headers.get("Host", ""))
        if self.is_own and not _is_loopback(host):
            raise ForbiddenError(
                f"This is not {host[:100]!r}",
                hint="It answers to localhost and 127.0.0.1 only, so that no other site can ask it from a browser. "
                "Does a proxy stand before it? Let it send localhost as the Host.",
                kind="host",
            )
        follows_link = is_page and headers.get("Sec-Fetch-Dest") == "document"
        if headers.get("Sec-Fetch-Site", "none") not in _OWN_SITES and not follows_link:
            raise ForbiddenError("This was sent by the page of another site", hint="Open the status page itself.")

    def has_token(self, headers: Headers) -> bool:
        """Whether the request comes with the token.

        Raises:
            UnauthorizedError: It comes with another one.
        """
        said = headers.get("Authorization", "")
        if not said or self.token is None:
            return False
        given = said[len(_SCHEME) :].strip() if said.lower().startswith(_SCHEME) else ""
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise UnauthorizedError("That is not the token", hint="It is what web.token or web.token_file says.")
        return True

    def require(self, need: Need, *, has_token: bool) -> None:
        """Refuse what the request may not have.

        Raises:
            ForbiddenError, UnauthorizedError: It may not.
        """
        if need is Need.NOTHING or (need is Need.FACTS and self.is_own):
            return
        if need is Need.ROWS and self.is_own and self.token is None:
            return
        self.require_token(has_token=has_token)

    def require_token(self, *, has_token: bool) -> None:
        """Refuse what comes without the token.

        Raises:
            ForbiddenError, UnauthorizedError: It does.
        """
        if has_token:
            return
        if self.token is None:
            raise ForbiddenError(
                "Without a token there is no more than this" if self.is_own else "Without a token nobody is told this",
                hint="Set web.token, or SYNCER_WEB_TOKEN, for the daemon and start it again.",
            )
        raise UnauthorizedError("That takes the token", hint="Send it as: Authorization: Bearer TOKEN")


def _name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_loopback(name: str) -> bool:
    if name.lower().rstrip(".") in _OWN_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
