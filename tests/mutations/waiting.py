"""Rules of those who wait for a transaction, taken out."""

from __future__ import annotations

from syncer.base.postgres import Connection
from syncer.capture.transaction_token import Token
from tests.mutations import Instead


def of_any_life(original: Instead, connection: Connection, token: Token) -> Token:
    """An id counts in whatever life of the database it is waited for."""
    original(connection, token)
    return token
