"""No setting of a role or a database changes a document: what changes a value is pinned, on each version."""

from __future__ import annotations

import psycopg
import pytest

from syncer.base.postgres import SESSION
from tests.support.world import World

HARMLESS = {
    # Of messages and names, not of values.
    "client_min_messages", "lc_messages", "escape_string_warning", "icu_validation_level", "check_function_bodies",
    # A literal is parsed differently, or refused; the SELECT is stored as it was parsed.
    "backslash_quote",
    # Of what is created, written or vacuumed.
    "createrole_self_grant", "default_table_access_method", "default_tablespace", "default_toast_compression",
    "event_triggers", "gin_pending_list_limit", "session_replication_role", "temp_tablespaces", "allow_alter_system",
    "vacuum_failsafe_age", "vacuum_freeze_min_age", "vacuum_freeze_table_age", "vacuum_multixact_failsafe_age",
    "vacuum_multixact_freeze_min_age", "vacuum_multixact_freeze_table_age", "lo_compat_privileges",
    "dynamic_library_path", "extension_control_path",
    # Of transactions, which syncer opens with a mode of its own.
    "default_transaction_deferrable", "default_transaction_read_only", "transaction_deferrable",
    "transaction_isolation", "transaction_read_only",
    # It refuses views or foreign tables; and the order of rows that have none, which plan notes.
    "restrict_nonsystem_relation_kind", "synchronize_seqscans",
    # Set by `connect`, by version or by component.
    "idle_in_transaction_session_timeout", "transaction_timeout",
}  # fmt: skip
CATEGORIES = (
    "Client Connection Defaults / Locale and Formatting", "Client Connection Defaults / Statement Behavior",
    "Client Connection Defaults / Other Defaults", "Version and Platform Compatibility / Previous PostgreSQL Versions",
    "Version and Platform Compatibility / Other Platforms and Clients",
)  # fmt: skip


def test_every_setting_that_may_change_a_value_is_pinned(module_world: World) -> None:
    """A setting of the server's that is neither pinned nor known to be harmless is one to look at."""
    names = module_world.sql("SELECT name FROM pg_settings WHERE category = ANY (%s)", list(CATEGORIES))
    assert {name for (name,) in names} - HARMLESS - SESSION.keys() == set()


CHANGED = {
    "xmlbinary = hex": r"xmlelement(name x, '\\xff00'::bytea)::text",
    "default_text_search_config = english": "to_tsvector('running dogs')::text",
    "timezone_abbreviations = 'Australia'": "('2026-01-01 12:00 EST'::text)::timestamptz::text",
    "bytea_output = escape": r"'\\xff00'::bytea::text",
    "xmloption = document": "('<a/><b/>'::text)::xml::text",
    "pg_trgm.similarity_threshold = 0.9": "current_setting('pg_trgm.similarity_threshold')",
}


@pytest.mark.parametrize(("setting", "value"), CHANGED.items())
def test_a_setting_of_the_database_changes_no_document(module_world: World, setting: str, value: str) -> None:
    """What a new session of syncer reads is what one read before the setting was changed."""

    def read() -> object:
        with module_world.connect() as connection:
            return connection.execute(f"SELECT {value}".encode()).fetchall()

    try:
        expected = read()
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this Postgres is built without XML")
    module_world.sql(f'ALTER DATABASE "{module_world.name}" SET {setting}')
    assert read() == expected
