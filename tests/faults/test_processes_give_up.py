"""A component that keeps retrying notices when its work is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence

from elasticsearch import Elasticsearch

from syncer import daemon
from syncer.base.errors import UnavailableError
from syncer.base.model import Composition, Target
from syncer.documents import registry
from syncer.elasticsearch.bulk import BulkOutcome, Index
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from tests.support.world import World, running, wait_until
from tests.support.writers import fill


class AwayIndex(Index):
    """Elasticsearch that takes no documents, for as long as it is asked."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self.asked = 0

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Be away."""
        self.asked += 1
        raise UnavailableError(f"{target.index_name} is away with {len(compositions)} documents")


def test_a_cancelled_page_is_given_up(world: World) -> None:
    """The job worker is free for other jobs, though the shard is away still."""
    fill(world)
    with world.elasticsearch() as client, world.connect() as connection:
        index = AwayIndex(client)
        job_worker = daemon.job_worker(world.settings, index, name="job_worker-test")
        job = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL)
        assert job is not None
        with running(job_worker):
            wait_until(lambda: index.asked > 1, what="it is tried again")
            assert job_worker._writes
            queue.cancel(connection, job.id)
            wait_until(lambda: not job_worker._writes, what="the page is given up")
