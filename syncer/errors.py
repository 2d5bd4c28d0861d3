"""Every error that syncer raises on purpose, as a tree.

    SyncerError
    ├── ConfigError        a setting or a config folder is wrong
    ├── DefinitionError    a document's folder is wrong: its SELECT, its mapping, its options
    ├── SourceError        Postgres: unreachable, unsupported, without the schema, without a privilege
    │   ├── ParkingError       what cannot be written cannot be parked either: to be tried again
    │   ├── ReplicaError       a replica does not show yet what it must: to be tried again
    │   └── RestoringError     the database is being restored: to be tried again
    ├── TopicError         Kafka: unreachable, topic missing
    │   └── LossError          records are gone: to be made up for by who met it, see `syncer.loss`
    ├── ComposeError       a document's SELECT failed on the data
    ├── IndexingError      Elasticsearch: unreachable, unsupported, refused the index or the request
    │   └── UnavailableError   it cannot answer as yet: to be tried again
    ├── DocumentError      one document cannot go on: what it reads has changed, its index is gone
    ├── UnwellError        an index takes no documents for now, and has not for a while
    ├── HangingError       a stage does not end, though it was told to
    ├── JobError           a job cannot be made as asked, or is not there
    ├── TokenError         a transaction cannot be waited for: it is none, open, rolled back, of another database
    ├── WaitTimeoutError   what a transaction has committed is not indexed in time
    ├── LockError          a lock in Elasticsearch cannot be had as asked, or a change not be made under it
    │   ├── LockTimeoutError   it cannot be had in time: somebody else holds it, or Elasticsearch does not answer
    │   └── LockLostError      it was taken away from us: nothing is changed under it any more
    └── SandboxError       an embedded server could not be fetched, started or stopped

An error says what happened and to what (its message) and what to do about it (its hint).
The command line prints both and no traceback; ``--debug`` adds the traceback.
"""

from collections.abc import Sequence
from typing import Any


class SyncerError(Exception):
    """Base of all errors that are meant for the person who runs syncer.

    Args:
        message: What happened, to what. One sentence, no trailing full stop.
        hint: What to do about it; may span lines. Empty when the message says it all.
        kind: Which trouble, the same however often it is met, if the message differs from one time to the next.
    """

    def __init__(self, message: str, *, hint: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
        if hint:
            self.add_note(hint)  # so that a traceback has it too


class ConfigError(SyncerError):
    """A setting or a config folder is wrong."""


class DefinitionError(SyncerError):
    """A document's folder is wrong: its SELECT, its mapping or its options."""


class SourceError(SyncerError):
    """Postgres is unreachable, unsupported, without the schema or without a privilege."""


class ParkingError(SourceError):
    """What cannot be written cannot be set aside either, or is not found among others."""


class ReplicaError(SourceError):
    """A replica of Postgres does not show, as yet or no longer, what is to be read."""


class RestoringError(SourceError):
    """Postgres has no syncer schema as yet, or not all of it, as while a dump is being restored."""


class TopicError(SyncerError):
    """Kafka is unreachable, or a topic is missing."""


class LossError(TopicError):
    """Records are gone from the topic before they were handled.

    Args:
        message: What happened.
        hint: What to do about it.
        losses: What is gone from each partition, as `syncer.topic` says it.
    """

    def __init__(self, message: str, *, hint: str = "", losses: Sequence[Any] = ()) -> None:
        super().__init__(message, hint=hint)
        self.losses = losses


class ComposeError(SyncerError):
    """A document's SELECT failed on the data that it met."""


class IndexingError(SyncerError):
    """Elasticsearch is unreachable, unsupported, or refused an index or a request."""


class UnavailableError(IndexingError):
    """Elasticsearch cannot answer as yet, or no longer, since a shard or a node was away."""


class DocumentError(SyncerError):
    """One document cannot go on until somebody mends it; the others can.

    Whoever raises it has found the generation in force after it was given the work that it could not do.

    Args:
        message: What happened, to what.
        hint: What to do about it.
        document: Which definition.
        generation: Under which generation.
    """

    def __init__(self, message: str, *, hint: str = "", document: str, generation: int) -> None:
        super().__init__(message, hint=hint)
        self.document = document
        self.generation = generation


class UnwellError(SyncerError):
    """An index takes no documents for now, and has not for so long that others are not to wait for it.

    Args:
        message: What it says.
        hint: What to do about it.
        index_name: Which.
    """

    def __init__(self, message: str, *, hint: str = "", index_name: str) -> None:
        super().__init__(message, hint=hint)
        self.index_name = index_name


class JobError(SyncerError):
    """A job cannot be made as it is asked for, or is not there, or is finished."""


class HangingError(SyncerError):
    """A stage has not ended in time after it was told to: a server keeps it waiting."""


class TokenError(SyncerError):
    """A token names no transaction that can be waited for."""


class WaitTimeoutError(SyncerError):
    """What a transaction has committed is not indexed, or not searchable, in time.

    Args:
        message: What it waits for.
        hint: What to do about it.
        stage: Where it is: relay, workers, jobs or refresh; servers, if one does not answer.
        jobs: The ids of the jobs that it waits for, if it is there.
    """

    def __init__(self, message: str, *, hint: str = "", stage: str = "", jobs: Sequence[int] = ()) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.jobs = tuple(jobs)


class LockError(SyncerError):
    """A lock in Elasticsearch cannot be had as it is asked for, or a change cannot be made under it."""


class LockTimeoutError(LockError):
    """The lock could not be had in time: somebody else has held it, or Elasticsearch did not do what that takes."""


class LockLostError(LockError):
    """The lock is no longer ours: whoever took us for dead has finished our change, or has rolled it back."""


class SandboxError(SyncerError):
    """An embedded server could not be fetched, started or stopped."""
