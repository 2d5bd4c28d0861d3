"""The replica that documents are read on, if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from syncer import replica
from syncer.doctor.finding import check
from syncer.doctor.patient import ANSWER_SECONDS, Patient, UnseenError, reason
from syncer.doctor.symptom import Symptom, advice, consider, sql, wrong
from syncer.errors import SourceError
from syncer.postgres import Connection

_LAG = """
SELECT coalesce(extract(epoch FROM CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN '0'::interval
                                   ELSE clock_timestamp() - pg_last_xact_replay_timestamp() END), 0)::float8,
       coalesce(pg_is_wal_replay_paused(), false)
"""
_SETTINGS = """
SELECT name, setting::float8 * CASE unit WHEN 'ms' THEN 0.001 ELSE 1 END FROM pg_settings
WHERE name IN ('recovery_min_apply_delay', 'max_standby_streaming_delay')
UNION ALL SELECT name, (setting = 'on')::int::float8 FROM pg_settings WHERE name = 'hot_standby_feedback'
"""


@check(
    "postgres.replica",
    "The server at postgres.read_dsn is a standby of the one at postgres.dsn, and keeps up",
    promises=(2, 3),
    why="A document is read there only once it shows all that the primary showed when its version was drawn.",
)
def _replica(patient: Patient) -> Iterator[Symptom]:
    settings = patient.settings.postgres
    bounded = min(ANSWER_SECONDS, settings.connect_timeout_seconds)
    opener = replica.opener(settings.model_copy(update={"connect_timeout_seconds": bounded}), name="doctor")
    if opener is None:
        return
    primary = patient.postgres
    try:
        opened = opener()
    except Exception as error:
        said = reason(error)
        if said is None:
            raise
        yield wrong(f"postgres.read_dsn: {said}", advice("Check SYNCER_POSTGRES_READ_DSN, and that the standby is up."))
        return
    with closing(opened):
        try:
            opened.require_cluster_of(primary)
            opened.require_standby()
        except SourceError as error:
            yield wrong(error.message, advice(error.hint))
            return
        yield from _pace(patient, opened.connection)


def _pace(patient: Patient, there: Connection) -> Iterator[Symptom]:
    row = there.execute(_LAG).fetchone()
    if row is None:
        raise UnseenError("the standby does not say how far it is")
    seconds, is_paused = row
    found: dict[str, float] = dict(there.execute(_SETTINGS).fetchall())
    on_standby = "On the standby."
    reload = "SELECT pg_reload_conf();"
    if is_paused:
        yield wrong("The standby's replay is paused", sql("SELECT pg_wal_replay_resume();", on_standby))
    elif seconds > patient.limits.replay_seconds:
        yield consider(
            f"The standby is {seconds:,.0f} s behind",
            advice(
                "Is a query in the way of its replay, or its disk or network too slow? Until it keeps up, unset "
                "read_dsn."
            ),
        )
    if found["recovery_min_apply_delay"] > 0:
        yield wrong(
            f"The standby applies everything {found['recovery_min_apply_delay']:g} s late, and so does every document",
            sql(f"ALTER SYSTEM SET recovery_min_apply_delay = 0;\n{reload}", on_standby),
        )
    if not found["hot_standby_feedback"] and found["max_standby_streaming_delay"] >= 0:
        yield consider(
            "hot_standby_feedback is off on the standby: a vacuum on the primary ends what takes longer there than "
            f"{found['max_standby_streaming_delay']:g} s",
            sql(f"ALTER SYSTEM SET hot_standby_feedback = on;\n{reload}", on_standby),
        )


CHECKS = (_replica,)
