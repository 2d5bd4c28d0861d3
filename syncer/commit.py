"""Commit: a transaction that somebody waits for, as its token names it, and what has become of it.

A token is the transaction's id as ``pg_current_xact_id()`` gives it, or better what ``syncer.token()`` returns: the
same with a mark of the database's life, since after a failover or a restore ids are given anew. A token of another life
is refused; an id alone is taken to be of the life that is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import psycopg

from syncer.errors import SourceError, TokenError
from syncer.postgres import Connection

_TOKEN = re.compile(r"(?P<xid>[0-9]{1,20})(?:\.(?P<life>[0-9a-f]{8}))?", re.ASCII)
_FIRST_XID = 3
"""Those before it are of no transaction that anybody has made."""
_XIDS = 1 << 64
_SHOWN = 40

_IN_RECOVERY = "SELECT pg_is_in_recovery()"
_STATUS = "SELECT pg_xact_status($1::xid8), syncer.life()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Names a transaction.

    Args:
        xid: Its id.
        life: The life of the database that it is of; None if that is not known.
    """

    xid: int
    life: str | None = None

    @classmethod
    def parse(cls, text: str) -> Token:
        """A token as an application has it.

        Raises:
            TokenError: It is none.
        """
        found = _TOKEN.fullmatch(text.strip())
        if found is None or not _FIRST_XID <= (xid := int(found["xid"])) < _XIDS:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise TokenError(
                f"{shown!r} is no token",
                hint="A token is what SELECT syncer.token() returns in the transaction that is waited for, before its "
                "commit,\nor what SELECT pg_current_xact_id() does.",
            )
        return cls(xid=xid, life=found["life"])


def require_committed(connection: Connection, token: Token) -> Token:
    """Refuse a transaction that there is nothing to wait for.

    One that is so old that Postgres has forgotten what became of it is taken to be committed.

    Returns:
        The token, with the life of the database that it is of.

    Raises:
        TokenError: It is open, was rolled back, has not begun, or is of another life of the database.
        SourceError: This is no primary, so that it is not known what became of it.
    """
    if connection.execute(_IN_RECOVERY).fetchone() == (True,):
        raise SourceError(
            "postgres.dsn leads to a replica, which does not know what syncer has done",
            hint="Ask the primary: a token may be waited for from anywhere, but not there.",
        )
    try:
        row = connection.execute(_STATUS, (str(token.xid),)).fetchone()
    except psycopg.errors.InvalidParameterValue as error:
        raise TokenError(
            f"No transaction {token.xid} has begun in this database",
            hint="Is the token of another database, or from before a restore? Documents are written anew after one.",
        ) from error
    assert row is not None  # noqa: S101 - a SELECT without FROM returns a row
    status, life = row
    if token.life not in (None, life):
        raise TokenError(
            f"Transaction {token.xid} is of another database than this one, or of one before a failover or a restore",
            hint="Whether its commit has survived nobody can say by its token. Look whether what it wrote is there;\n"
            "every document is written anew after a failover, which syncer status shows as jobs.",
        )
    if status == "aborted":
        raise TokenError(
            f"Transaction {token.xid} was rolled back", hint="Nothing of it will be indexed. Do it again, if it failed."
        )
    if status == "in progress":
        raise TokenError(
            f"Transaction {token.xid} is not committed as yet",
            hint="Take the token inside the transaction, commit, and wait then. (It may be prepared, for a two-phase "
            "commit.)",
        )
    return replace(token, life=life)
