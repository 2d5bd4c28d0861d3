"""In which order documents are written: the epoch, the sequence, and versions that were never drawn."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from syncer import version
from syncer.doctor.finding import check
from syncer.doctor.patient import Patient, UnseenError
from syncer.doctor.symptom import Symptom, consider, shell, sql, wrong
from syncer.model import EPOCH_SHIFT
from syncer.store import Document
from syncer.version import Origin

_WRITERS = """
SELECT EXISTS (SELECT FROM pg_stat_activity
               WHERE datname = current_database() AND application_name ~ '^syncer (worker|refresher)')
"""
_REMEMBERED = "SELECT installation, epoch FROM syncer.incarnation"
# The next writer finds another incarnation than the one that is remembered, and enters an epoch of its own.
_NEW_EPOCH = sql(
    "UPDATE syncer.incarnation SET sequence = 0;",
    "Then restart the daemons: the first writer enters a new epoch, greater than any. After that, for each document: "
    "syncer verify DOCUMENT --repair",
)


def _remembered(patient: Patient) -> tuple[UUID, int]:
    assert patient.installed  # noqa: S101 - or it has raised
    rows = patient.rows(_REMEMBERED)
    if not rows:
        raise UnseenError("syncer.incarnation has no row")
    return rows[0][0], rows[0][1]


@check(
    "postgres.incarnation",
    "The epoch belongs to the database as it runs",
    promises=(2,),
    why="A database that was restored, or failed over, may hand out numbers once more; only a greater epoch "
    "makes their "
    "versions greater.",
)
def _incarnation(patient: Patient) -> Iterator[Symptom]:
    _, epoch = _remembered(patient)
    if epoch and not version.is_entered(patient.installed):
        yield consider(
            "The database is not the one that the epoch was entered in: failover, restore or copy",
            shell(
                "syncer verify --repair",
                "Start the daemons first: each writer sees to the epoch when it connects. Documents may show what the "
                "database has lost.",
            ),
        )


@check(
    "elasticsearch.epoch",
    "Elasticsearch remembers the epoch",
    promises=(2,),
    why="No restore of Postgres can take the epoch back as long as it is kept outside of it too.",
)
def _epoch(patient: Patient) -> Iterator[Symptom]:
    installation, epoch = _remembered(patient)
    recorded = patient.index.read_epoch(installation)
    if recorded < epoch:
        yield wrong(
            f"Postgres is in epoch {epoch}, and Elasticsearch remembers {recorded or 'none'}: was syncer-state "
            "deleted?",
            patient.request(
                "PUT",
                f"/syncer-state/_doc/epoch-{installation}?version={epoch}&version_type=external_gte",
                f'{{"epoch": {epoch}}}',
                note="If it was deleted a moment ago, Elasticsearch may answer 409 for a minute.",
            ),
        )
    elif recorded > epoch and version.is_entered(patient.installed):
        yield wrong(
            f"Elasticsearch remembers epoch {recorded}, and Postgres is back in {epoch}: was its disk restored?",
            _NEW_EPOCH,
        )


@check(
    "elasticsearch.versions",
    "No document has a version that was not drawn",
    promises=(2, 3),
    why="What has a greater version than any that was drawn is never overwritten: the sequence was set back, or "
    "somebody else writes to the index. Looked at are the documents that were written last.",
)
def _versions(patient: Patient) -> Iterator[Symptom]:
    for document, _ in patient.each_index():
        found = patient.elasticsearch.search(
            index=document.index_name,
            sort=[{"_seq_no": "desc"}],
            size=patient.limits.written_last,
            version=True,
            source=False,
            track_total_hits=False,
        )
        # Elasticsearch first: what is found there was drawn before the sequence is looked at.
        held = {hit["_version"]: hit["_id"] for hit in found.body["hits"]["hits"]}
        yield from _judge(patient, document, held)


def _judge(patient: Patient, document: Document, held: dict[int, str]) -> Iterator[Symptom]:
    _, epoch = _remembered(patient)
    foreign = [one for one in held if version.origin(patient.installed, patient.index, one) is Origin.FOREIGN]
    ahead = [one for one in foreign if one >> EPOCH_SHIFT == epoch]
    newest = max(ahead, default=0)
    # After a crash the last numbers may be unknown; every writer steps over them when it connects.
    if ahead and (patient.value(_WRITERS) or not version.is_surpassed(patient.installed, newest)):
        number = version.split(newest)[1]
        yield wrong(
            f"{document.index_name} has {held[newest]} with number {number:,} of epoch {epoch}, which is yet to be "
            "drawn: the sequence was set back",
            _NEW_EPOCH,
        )
    others = [one for one in foreign if one not in ahead]
    if others:
        yield wrong(
            f"{document.index_name} has {held[others[0]]} with version {others[0]}, which syncer never draws: "
            "somebody else writes there",
            shell(
                f"syncer verify {document.name} --repair",
                "First give the privilege to write there to syncer alone. What has a greater version than any is "
                f"overwritten by nobody: syncer backfill {document.name} --rebuild",
            ),
        )


CHECKS = (_incarnation,)
OF_ELASTICSEARCH = (_epoch, _versions)
