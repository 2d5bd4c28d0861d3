"""Transaction tokens: name a transaction to wait for, and check its outcome.

A token is the transaction's id, as ``pg_current_xact_id()`` returns it. Better is what ``syncer.token()`` returns: the
id with a mark of the database's identity, since ids are reused after a failover or a restore. A token with another
identity is refused; an id alone is taken to be of the current one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import psycopg

from syncer.base.errors import SourceError, TokenError
from syncer.base.formatting import shortened
from syncer.base.postgres import Connection, value

_TOKEN = re.compile(r"(?P<xid>[0-9]{1,20})(?:\.(?P<identity>[0-9a-f]{8}))?", re.ASCII)
_XIDS = range(3, 1 << 64)
"""Postgres reserves smaller ids."""
_IN_RECOVERY = "SELECT pg_is_in_recovery()"
_STATUS = "SELECT pg_xact_status($1::xid8), syncer.identity()"
_NOT_COMMITTED = {
    "aborted": ("was rolled back", "Nothing of it will be indexed. Do it again, if it failed."),
    "in progress": (
        "is not committed as yet",
        "Take the token inside the transaction, commit, and wait then. (It may be prepared, for a two-phase commit.)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The name of a transaction: its id, and the identity of its database, which a failover changes, if it is known."""

    xid: int
    identity: str | None = None

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse a token as an application passes it.

        Raises:
            TokenError: The text is not a token.
        """
        found = _TOKEN.fullmatch(text.strip())
        if found is None or (xid := int(found["xid"])) not in _XIDS:
            raise TokenError(
                f"{str(shortened(text))!r} is no token",
                hint="A token is what SELECT syncer.token() returns in the transaction that is waited for, before its "
                "commit,\nor what SELECT pg_current_xact_id() does.",
            )
        return cls(xid=xid, identity=found["identity"])


def require_committed(connection: Connection, token: Token) -> Token:
    """Refuse a transaction that there is no point in waiting for; return the token with the database's identity.

    A transaction so old that Postgres has forgotten its outcome is taken to be committed.

    Raises:
        TokenError: It is open, was rolled back, has not begun, or has another database identity.
        SourceError: This server is a replica, so the outcome is not known here.
    """
    if value(connection, _IN_RECOVERY):
        raise SourceError(
            "postgres.dsn leads to a replica, which does not know what syncer has done",
            hint="Ask the primary: a token may be waited for from anywhere, but not there.",
        )
    try:
        [(status, identity)] = connection.execute(_STATUS, (str(token.xid),)).fetchall()
    except psycopg.errors.InvalidParameterValue as error:
        raise TokenError(
            f"No transaction {token.xid} has begun in this database",
            hint="Is the token of another database, or from before a restore? Documents are written anew after one.",
        ) from error
    if token.identity not in (None, identity):
        raise TokenError(
            f"Transaction {token.xid} is of another database than this one, or of one before a failover or a restore",
            hint="The token cannot show whether its commit survived. Check whether the data is there;\n"
            "every document is written anew after a failover, which syncer status shows as jobs.",
        )
    if status in _NOT_COMMITTED:
        outcome, hint = _NOT_COMMITTED[status]
        raise TokenError(f"Transaction {token.xid} {outcome}", hint=hint)
    return replace(token, identity=identity)
