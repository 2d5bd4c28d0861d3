"""Who tries again and again finds out that nobody needs it any more."""

from __future__ import annotations

from collections.abc import Sequence

from elasticsearch import Elasticsearch

from syncer import jobs, service, store
from syncer.errors import UnavailableError
from syncer.index import BulkOutcome, Index
from syncer.job import JobKind
from syncer.model import Composition, Target
from tests.faults.writers import fill
from tests.harness import World, running, wait_until
from tests.proof import Rule, faces


class AwayIndex(Index):
    """Elasticsearch that takes no documents, for as long as it is asked."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self.asked = 0

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Be away."""
        self.asked += 1
        raise UnavailableError(f"{target.index_name} is away with {len(compositions)} documents")


@faces(
    "a job is cancelled while its page is tried again and again, since a shard is away",
    promises=(4,),
    without=Rule(
        "a page that is no longer ours is not tried again",
        module="syncer.refresher",
        text="if isinstance(task, _Hand) and task.is_lost:",
        instead="if False:",
    ),
)
def test_a_cancelled_page_is_given_up(world: World) -> None:
    """The lane is free for other jobs, though the shard is away still."""
    fill(world)
    with world.elasticsearch() as client, world.connect() as connection:
        index = AwayIndex(client)
        lane = service.refresher(world.settings, index, name="refresher-test")
        job = jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
        assert job is not None
        with running(lane):
            wait_until(lambda: index.asked > 1, what="it is tried again")
            assert lane._hands
            jobs.cancel(connection, job.id)
            wait_until(lambda: not lane._hands, what="the page is given up")
