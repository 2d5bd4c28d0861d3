"""The tree of errors that syncer raises.

    SyncerError
    ├── ConfigError, DefinitionError      what a user has written
    ├── SourceError ── NotReadyError      Postgres
    ├── TopicError ── LossError           Kafka
    ├── IndexingError ── UnavailableError Elasticsearch
    ├── ComposeError                      a SELECT that failed on the data
    ├── DocumentError ── SuspendedError, AlteredError   one definition
    ├── LockError ── LockTimeoutError, LockLostError
    └── HangingError, JobError, TokenError, WaitTimeoutError, SandboxError

An error says what happened and to what (its message) and what to do about it (its hint).
The command line prints both and no traceback; ``--debug`` adds the traceback.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self


@dataclass(eq=False, repr=False)
class SyncerError(Exception):
    """Base class of errors that are shown to the user."""

    message: str
    """What failed, and on what. One sentence without a full stop."""
    hint: str = field(default="", kw_only=True)
    """What to do; may span lines, or be empty."""
    kind: str = field(default="", kw_only=True)
    """A stable name of the error, if the message varies between occurrences."""

    def __post_init__(self) -> None:
        """Show the message as the error's text, and the hint also in a traceback."""
        super().__init__(self.message)
        if self.hint:
            self.add_note(self.hint)


class ConfigError(SyncerError):
    """A setting, an option or a config folder is invalid."""


class DefinitionError(SyncerError):
    """A document's folder is invalid: its SELECT, its mapping or its options."""


class SourceError(SyncerError):
    """Postgres is unreachable, unsupported, without the schema or without a privilege."""


class NotReadyError(SourceError):
    """Postgres answers, and is not ready: a dump is being restored, or a dead letter cannot be recorded."""


class TopicError(SyncerError):
    """Kafka is unreachable, or a topic is missing."""


@dataclass(eq=False, repr=False, kw_only=True)
class LossError(TopicError):
    """Records of a partition, up to this number, were lost from the topic before they were handled."""

    partition: int
    number: int


@dataclass(eq=False, repr=False, kw_only=True)
class ComposeError(SyncerError):
    """A document's SELECT failed on the data that it met, or on these documents, if they are known."""

    ids: Sequence[str] = ()


class IndexingError(SyncerError):
    """Elasticsearch is unreachable or unsupported, or rejected an index or a request."""


class UnavailableError(IndexingError):
    """A shard or a node of Elasticsearch is unavailable."""


class OvertakenError(UnavailableError):
    """Another database of this installation is in use: nothing of this one is written until it is not."""


@dataclass(eq=False, repr=False, kw_only=True)
class DocumentError(SyncerError):
    """A definition has to be suspended; the others continue. The revision was still active after the failure."""

    document: str
    revision: int
    ids: Sequence[str] = ()
    """Documents to try before it is resumed, if the error is about some."""
    is_stale: bool = False
    """Whether changes may have been missed, so that it needs a refresh when it is resumed."""

    @classmethod
    def of(cls, error: SyncerError, document: str, revision: int, *, ids: Sequence[str] = ()) -> Self:
        """Return the error for a definition at fault, explained by another error."""
        return cls(error.message, hint=error.hint, document=document, revision=revision, ids=ids)


class SuspendedError(DocumentError):
    """The document is suspended."""


class AlteredError(DocumentError):
    """What the document reads differs from what it was applied to; it may be able to go on all the same."""


class JobError(SyncerError):
    """A job cannot be created, does not exist or is finished."""


class HangingError(SyncerError):
    """A component did not stop in time, because a server does not respond."""


class TokenError(SyncerError):
    """The token does not identify a transaction that can be waited for."""


@dataclass(eq=False, repr=False, kw_only=True)
class WaitTimeoutError(SyncerError):
    """A transaction was not indexed, or not searchable, in time."""

    component: str = ""
    """Where it is: relay, workers, jobs or refresh; servers, if one does not answer."""
    jobs: Sequence[int] = ()


class LockError(SyncerError):
    """A lock in Elasticsearch cannot be acquired, or a change under it failed."""


class LockTimeoutError(LockError):
    """The lock was not acquired in time: it is held, or Elasticsearch does not respond."""


class LockLostError(LockError):
    """The lock was lost: another owner declared this one dead and finished or rolled back its change."""


class SandboxError(SyncerError):
    """An embedded server could not be fetched, started or stopped."""
