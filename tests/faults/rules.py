"""Rules of syncer's that protect more than one test, each with the mutation that takes it out: see `tests.proof`."""

from __future__ import annotations

from tests.proof import Rule

# Capture

OLD_IMAGES = Rule(
    "a row leads to its documents as it was and as it is",
    module="syncer.model",
    text="for image in (read.old, read.new) if image is not None",
    instead="for image in (read.new or read.old,) if image is not None",
)
KEY_CHANGES = Rule(
    "a key that changes is a delete and an insert",
    module="syncer.trigger",
    text="{old_rows} FULL JOIN {new_rows}",
    instead="{old_rows} RIGHT JOIN {new_rows}",
)
TRUNCATED = Rule(
    "a change that names no row touches every document",
    module="syncer.affected",
    text="return None if any(not change.images for some in used.values() for change in some) else used",
    instead="return used",
)
FILES_NOTED = Rule(
    "a table that lies in other files than before counts as truncated",
    module="syncer.capture",
    text="not in (files, None) and _note(connection, relation)",
    instead="not in (files, None) and False",
)

GONE_IS_NULL = Rule(
    "a trigger finds a column that is gone one level up, and does not fail",
    module="syncer.trigger",
    text='sql.SQL("{} AS {}").format(sql.Identifier(one), sql.Identifier(place))',
    instead='sql.SQL("{} AS {}").format(sql.Identifier("syncer row", one), sql.Identifier(place))',
)
ROW_TRIGGERS = Rule(
    "a partitioned table has triggers for each row, in every partition",
    module="syncer.capture",
    text="return bool(value(connection, _IS_BY_ROW, asked))",
    instead="return False",
)
WRITERS_WAITED_FOR = Rule(
    "a definition that reads more comes into force once whoever wrote before has ended",
    module="syncer.capture",
    text="_wait_for_writers(connection, capture.relation, deadline, waiting)",
    instead="pass",
)

# Relay

ONE_LEADER = Rule(
    "one relay leads, by a lock of the connection that saves the cursor",
    module="syncer.relay",
    text='_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"',
    instead='_LEAD = "SELECT true"',
)
CURSOR_IS_A_SNAPSHOT = Rule(
    "the cursor is a snapshot: what was in progress when it was taken is looked for by name",
    module="syncer.outbox",
    text="o.xid >= {}::xid8 OR o.xid = ANY ({}::xid8[])",
    instead="o.xid >= {}::xid8 AND {}::xid8[] IS NOT NULL",
)
SAVED_LAST = Rule(
    "the cursor is saved once every record is acknowledged",
    module="syncer.relay",
    text="published, seen = self._produce_new(connection, self._cursor, producer, batch)",
    instead="published, seen = self._produce_new(connection, self._cursor, producer, batch); "
    "Relay._save(self, connection, seen, producer)",
)

RUNG = Rule(
    "whoever writes while the relay sleeps rings",
    module="syncer.doorbell",
    text="PERFORM pg_catalog.pg_notify('{CHANNEL}', '');",
    instead="PERFORM pg_catalog.pg_notify('{CHANNEL}_of_others', '');",
)
LOOKED_ONCE_MORE = Rule(
    "the relay looks once more when everybody rings",
    module="syncer.relay",
    text="if not self.run_once().published:",
    instead="if True:",
)

# Worker

COMMITTED_LAST = Rule(
    "an offset is committed only for what is done",
    module="syncer.worker",
    text="self._batches.append(batch)",
    instead="self._batches.append(batch); self._membership.commit(batch.received); time.sleep(0.3)",
)
REFUSED_AGAIN = Rule(
    "documents that Elasticsearch refuses for now are written again",
    module="syncer.pipeline",
    text="self._write_slowly(one, again)",
    instead="pass",
)
BUSY_IS_RETRIED = Rule(
    "a request that Elasticsearch has no room for is sent again",
    module="syncer.policy",
    text="408, 429, 500",
    instead="408, 500",
)

DATA_IS_PARKED = Rule(
    "a row that makes the SELECT raise is found out, and parked",
    module="syncer.policy",
    text="(psycopg.DataError, Action.PARK)",
    instead="(psycopg.DataError, Action.HALT_DOCUMENT)",
)
REFUSED_IS_PARKED = Rule(
    "a document that Elasticsearch refuses is parked by itself",
    module="syncer.policy",
    text="_PARKED_STATUSES = frozenset({400, 413})",
    instead="_PARKED_STATUSES = frozenset()",
)

# The version rule

DRAWN_WITH_THE_SNAPSHOT = Rule(
    "a version is drawn with the snapshot of what is written with it, and not later",
    module="syncer.compose",
    text="            return Batch(\n                compositions=self._compositions(document, ids, drawn, absent),\n"
    "                version=drawn,\n",
    instead="            early = self._compositions(document, ids, drawn, absent)\n"
    '            self._connection.execute("COMMIT")\n'
    '            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")\n'
    "            late = version.draw(self._connection)\n"
    "            again = [\n"
    "                Composition(id=one.id, version=late, source=one.source, routing=one.routing)\n"
    "                for one in early\n            ]\n"
    "            return Batch(\n                compositions=tuple(again),\n                version=late,\n",
)
DRAWN_IN_TURN = Rule(
    "nobody else draws, or takes his snapshot, between a draw and its snapshot",
    module="syncer.version",
    text="LOCK TABLE syncer.turn IN EXCLUSIVE MODE;",
    instead="DO 'BEGIN PERFORM pg_sleep(random() / 50); END';",
)
WRITTEN_WITH_THE_DRAW = Rule(
    "documents are written with the version of their draw, not with one of their writing",
    module="syncer.index",
    text='"version":{one.version}',
    instead='"version":{one.version + __import__("time").time_ns()}',
)
ON_ALL_SHARDS = Rule(
    "a document with a routing is deleted from all other shards with the version that it is written with",
    module="syncer.index",
    text="return self.holdings.shards(target).others(composition.place.routing)",
    instead="return ()",
)
REPLAYED = Rule(
    "a replica is read only once it has replayed the draw",
    module="syncer.replica",
    text="self._wait_for(mark)",
    instead="self.require_draw = lambda _: None",
)
SAME_CLUSTER = Rule(
    "only a server of the same cluster and database is read",
    module="syncer.replica",
    text="if not self._is_known and value(primary",
    instead="if False and value(primary",
)

EPOCH_RECORDED = Rule(
    "an epoch is greater than any that Elasticsearch has seen",
    module="syncer.version",
    text="max(found.epoch, recorded) + 1",
    instead="found.epoch + 1",
)

# Jobs

RECLAIMED = Rule(
    "pages of a lane that is dead or stalled are given to another",
    module="syncer.job_pages",
    text="return sum(connection.execute(_GIVE_BACK, one).rowcount for one in lost)",
    instead="return 0",
)
COUNTED_ONCE = Rule(
    "a page is counted by whoever takes it away, in one statement",
    module="syncer.job_pages",
    text="DELETE FROM syncer.job_page AS p USING job WHERE p.job = job.id AND p.number = ANY ($2)\n"
    "    RETURNING p.job, p.number, cardinality(p.ids) AS documents",
    instead="SELECT p.job, p.number, cardinality(p.ids) AS documents\n"
    "    FROM syncer.job_page AS p JOIN job ON p.job = job.id AND p.number = ANY ($2)",
)
RENUMBERED = Rule(
    "a page that is given back gets another number, under which whoever had it cannot finish it",
    module="syncer.job_pages",
    text="SET number = job.pages_end, taken_by = NULL",
    instead="SET taken_by = NULL",
)
SWEPT = Rule(
    "a job of all documents looks for what only Elasticsearch has",
    module="syncer.jobs",
    text="if is_through and job.kind.is_whole and job.state is JobState.LISTED:",
    instead="if False:",
)
LATE_READ_AGAIN = Rule(
    "whoever has written reads again if all documents were listed since he read",
    module="syncer.writer",
    text="return state.listings != batch.listings or",
    instead="return False or",
)
OWED_UNFILLED = Rule(
    "a document counts as not filled once a job that is owed is given up",
    module="syncer.jobs",
    text="if is_ended and job.kind.is_owed:",
    instead="if False:",
)

POSTPONED = Rule(
    "a job that is in trouble is left for a while",
    module="syncer.refresher",
    text="self._postpone(job, error)",
    instead="raise error",
)

# Definitions and indices

OWED_WAITED_FOR = Rule(
    "a new index waits for the jobs that would leave it stale",
    module="syncer.filling",
    text="for _ in range(2):  # see `rebuild.owed`",
    instead="for _ in range(0):",
)

FOLLOWED = Rule(
    "an index that is built, or on standby, is followed like the one that serves",
    module="syncer.affected",
    text="if one.halted is None]",
    instead='if one.halted is None and one.role == "serving"]',
)
NOT_NEEDED = Rule(
    "an index that no search needs halts when it takes nothing",
    module="syncer.refusal",
    text="if document.role is Role.SERVING:",
    instead="if True:",
)
SHAPE_COMPARED = Rule(
    "a document is read only from what its definition was applied to",
    module="syncer.reading",
    text="if said := shape.differences(before, shape.read_again(connection, before)):",
    instead="if said := []:",
)
HALT_ENDS_ANEW = Rule(
    "a halt ends with a generation of its own, under which every document is written once",
    module="syncer.steps",
    text="is_changed = before is None or before.halted is not None or",
    instead="is_changed = before is None or",
)
SHORT_WAITS = Rule(
    "a stage gives up a table that is being altered, and looks whether it is to stop",
    module="syncer.postgres",
    text="        except psycopg.errors.LockNotAvailable:\n            if lock_seconds:",
    instead="        except psycopg.errors.LockNotAvailable:\n            if False:",
)

# Verify

LOOKED_AT_AGAIN = Rule(
    "what differs is looked at again until it has stayed so for a while",
    module="syncer.verify",
    text="ripe_at = time.monotonic() - self.settle_seconds",
    instead="ripe_at = time.monotonic()",
)
EXTRAS_COUNTED = Rule(
    "what only Elasticsearch has is found by counting",
    module="syncer.verify",
    text="self._extras(view, view.count() - found,",
    instead="self._extras(view, 0,",
)
