"""Access: what a request may read. No request changes anything.

Guarantees: a page of another site, open in the same browser, can read nothing. A foreign host name is refused, to
prevent DNS rebinding. So is a request that the browser marks as cross-site. Tokens are compared in constant time.

                                        from this machine    from others    with the token
    the page alone, metrics, health     yes                  yes            yes
    figures, names, ids of documents    yes                  no             yes
    values of rows                      no                   no             yes
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass

from werkzeug.datastructures import Headers

from syncer.base.errors import SyncerError


class ForbiddenError(SyncerError):
    """The request is refused, whether it has the token or not."""


class UnauthorizedError(SyncerError):
    """The request needs the token, and came without it or with a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Checks what requests may do, by the address that the server listens on, and the token, if one is set."""

    host: str
    token: str | None

    @property
    def is_own(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)

    def require(self, *, has_token: bool, for_values: bool = False) -> None:
        """Refuse a request for figures and names, or for values, that may not have them.

        Raises:
            ForbiddenError, UnauthorizedError: It may not.
        """
        if has_token or (self.is_own and not for_values):
            return
        if self.token is None:
            hint = "Set web.token (SYNCER_WEB_TOKEN) and restart the daemon."
            raise ForbiddenError("This requires a token, and none is set", hint=hint)
        raise UnauthorizedError("This requires the token", hint="Send it as: Authorization: Bearer TOKEN")

    def require_ours(self, headers: Headers, *, is_page: bool) -> None:
        """Refuse cross-site requests of browsers. A link from another site may lead to the page, which has no data yet.

        Raises:
            ForbiddenError: The request is cross-site.
        """
        host = headers.get("Host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self.is_own and not _is_loopback(name):
            raise ForbiddenError(
                f"This is not {name[:100]!r}",
                hint="It answers to localhost and 127.0.0.1 only, to prevent DNS rebinding. "
                "If a proxy forwards the requests, let it send localhost as the Host header.",
                kind="host",
            )
        follows_link = is_page and headers.get("Sec-Fetch-Dest") == "document"
        if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not follows_link:
            raise ForbiddenError("A page of another site sent this request", hint="Open the status page itself.")

    def has_token(self, headers: Headers) -> bool:
        """Whether the request has the token.

        Raises:
            UnauthorizedError: It has a wrong one.
        """
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if not scheme or self.token is None:
            return False
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise UnauthorizedError("Wrong token", hint="It is the value of web.token.")
        return True


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower().rstrip(".") == "localhost"
