"""The tree of errors that syncer raises.

    SyncerError
    ├── ConfigError, DefinitionError      what a user has written
    ├── SourceError                       Postgres
    │   └── DeadLetteringError, RestoringError
    ├── TopicError ── LossError           Kafka
    ├── IndexingError ── UnavailableError Elasticsearch
    ├── ComposeError ── DuplicateIdError  a SELECT that failed on the data
    ├── DocumentError ── SuspendedError   one definition
    ├── LockError ── LockTimeoutError, LockLostError
    └── HangingError, JobError, TokenError, WaitTimeoutError, SandboxError

An error says what happened and to what (its message) and what to do about it (its hint).
The command line prints both and no traceback; ``--debug`` adds the traceback.
"""

from collections.abc import Sequence


class SyncerError(Exception):
    """Base class of errors that are shown to the user.

    Args:
        message: What failed, and on what. One sentence without a full stop.
        hint: What to do; may span lines, or be empty.
        kind: A stable name of the error, if the message varies between occurrences.
    """

    def __init__(self, message: str, *, hint: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
        if hint:
            self.add_note(hint)  # so that a traceback has it too


class ConfigError(SyncerError):
    """A setting, an option or a config folder is invalid."""


class DefinitionError(SyncerError):
    """A document's folder is invalid: its SELECT, its mapping or its options."""


class SourceError(SyncerError):
    """Postgres is unreachable, unsupported, without the schema or without a privilege."""


class DeadLetteringError(SourceError):
    """A dead letter could not be recorded, or the row at fault could not be found."""


class RestoringError(SourceError):
    """The syncer schema is missing or incomplete, as during a restore."""


class TopicError(SyncerError):
    """Kafka is unreachable, or a topic is missing."""


class LossError(TopicError):
    """Records of a partition, up to this number, were lost from the topic before they were handled."""

    def __init__(self, message: str, *, partition: int, number: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.number = number


class ComposeError(SyncerError):
    """A document's SELECT failed on the data that it met."""


class DuplicateIdError(ComposeError):
    """A SELECT returns an id more than once; ``ids`` has such an id, if it is known."""

    def __init__(self, message: str, *, hint: str = "", ids: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.ids = tuple(ids)


class IndexingError(SyncerError):
    """Elasticsearch is unreachable or unsupported, or rejected an index or a request."""


class UnavailableError(IndexingError):
    """A shard or a node of Elasticsearch is unavailable."""


class DocumentError(SyncerError):
    """A definition has to be suspended; the others continue. The revision was still active after the failure.

    Args:
        ids: Documents to try before it is resumed, if the error is about some.
        is_stale: Whether changes may have been missed, so that it needs a refresh when it is resumed.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        document: str,
        revision: int,
        ids: Sequence[str] = (),
        is_stale: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.document = document
        self.revision = revision
        self.ids = tuple(ids)
        self.is_stale = is_stale


class SuspendedError(DocumentError):
    """The document is suspended."""


class JobError(SyncerError):
    """A job cannot be created, does not exist or is finished."""


class HangingError(SyncerError):
    """A component did not stop in time, because a server does not respond."""


class TokenError(SyncerError):
    """The token does not identify a transaction that can be waited for."""


class WaitTimeoutError(SyncerError):
    """A transaction was not indexed, or not searchable, in time.

    Args:
        component: Where it is: relay, workers, jobs or refresh; servers, if one does not answer.
        jobs: The ids of the jobs that it waits for, if it is there.
    """

    def __init__(self, message: str, *, hint: str = "", component: str = "", jobs: Sequence[int] = ()) -> None:
        super().__init__(message, hint=hint)
        self.component = component
        self.jobs = tuple(jobs)


class LockError(SyncerError):
    """A lock in Elasticsearch cannot be acquired, or a change under it failed."""


class LockTimeoutError(LockError):
    """The lock was not acquired in time: it is held, or Elasticsearch does not respond."""


class LockLostError(LockError):
    """The lock was lost: another owner declared this one dead and finished or rolled back its change."""


class SandboxError(SyncerError):
    """An embedded server could not be fetched, started or stopped."""
