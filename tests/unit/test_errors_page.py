"""The page of errors says what the policy decides, of every member of it."""

from __future__ import annotations

from confluent_kafka import KafkaError

from syncer.base import error_policy
from tests import errors_page


def test_every_member_of_the_policy_is_on_the_page() -> None:
    """Each status and code that it names, each error of Postgres' that it knows, each error of syncer's own."""
    page = errors_page.page()
    for status in error_policy._RETRIED_STATUSES | error_policy._RETRIED_ITEMS | error_policy._DEAD_LETTERED_STATUSES:
        assert f"| {status} |" in page
    for kind, _ in error_policy._POSTGRES:
        assert kind.__module__ != "psycopg.errors" or not kind.sqlstate or kind.__name__ in page
    for code in error_policy._FATAL_KAFKA:
        assert f"`{KafkaError(code).name()}`" in page
    for error in errors_page.our_errors()[1:]:
        assert f"| {error.__name__} |" in page
