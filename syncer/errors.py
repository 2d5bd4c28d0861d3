"""Every error that syncer raises on purpose, as a tree.

    SyncerError
    ├── ConfigError        a setting or a config folder is wrong
    ├── DefinitionError    a document's folder is wrong: its SELECT, its mapping, its options
    ├── SourceError        Postgres: unreachable, unsupported, without the schema, without a privilege
    ├── TopicError         Kafka: unreachable, topic missing, offsets lost
    ├── ComposeError       a document's SELECT failed on the data
    ├── IndexingError      Elasticsearch: unreachable, unsupported, refused the index or the request
    │   └── UnavailableError   it cannot answer as yet: to be tried again
    ├── DocumentError      one document cannot go on: what it reads has changed, its index is gone
    ├── JobError           a job cannot be made as asked, or is not there
    └── SandboxError       an embedded server could not be fetched, started or stopped

An error says what happened and to what (its message) and what to do about it (its hint).
The command line prints both and no traceback; ``--debug`` adds the traceback.
"""


class SyncerError(Exception):
    """Base of all errors that are meant for the person who runs syncer.

    Args:
        message: What happened, to what. One sentence, no trailing full stop.
        hint: What to do about it; may span lines. Empty when the message says it all.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(SyncerError):
    """A setting or a config folder is wrong."""


class DefinitionError(SyncerError):
    """A document's folder is wrong: its SELECT, its mapping or its options."""


class SourceError(SyncerError):
    """Postgres is unreachable, unsupported, without the schema or without a privilege."""


class TopicError(SyncerError):
    """Kafka is unreachable, a topic is missing, or offsets are lost."""


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


class JobError(SyncerError):
    """A job cannot be made as it is asked for, or is not there, or is finished."""


class SandboxError(SyncerError):
    """An embedded server could not be fetched, started or stopped."""
