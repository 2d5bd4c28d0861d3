"""A filesystem: files are found by their contents and their directory."""

from __future__ import annotations

from syncer.demo.guide.rows import FILES as ROWS
from syncer.demo.model import Ask, GuideModel, Row, Write, hits, total

_GREP = {"match": {"contents": "elasticsearch"}}
_FOUND = hits("path", "name")


def _grep(directory: str, *answer: Row) -> Ask:
    return Ask(
        question=f"grep elasticsearch {directory}/*",
        document="file",
        body={"query": {"bool": {"must": [_GREP], "filter": [{"term": {"path": directory}}]}}},
        read=_FOUND,
        answer=answer,
    )


def _grep_below(directory: str, *answer: Row) -> Ask:
    return Ask(
        question=f"grep -r elasticsearch {directory}",
        document="file",
        body={
            "query": {"bool": {"must": [_GREP], "filter": [{"term": {"path.tree": directory}}]}},
            "sort": ["path", "name"],
        },
        read=_FOUND,
        answer=answer,
    )


def _count_below(directory: str, number: str) -> Ask:
    return Ask(
        question=f"How many files are below {directory}?",
        document="file",
        body={"query": {"term": {"path.tree": directory}}, "size": 0, "track_total_hits": True},
        read=total("files"),
        answer=((number,),),
    )


FILES = GuideModel(
    name="files",
    question="Files by their contents, in one directory or anywhere below it.",
    price="Renaming or moving a directory writes every file below it.",
    choice="Choose it when files are searched by place far more often than directories are renamed.",
    documents=("file",),
    schema="filesystem",
    rows=ROWS,
    steps=(
        _grep("/clinton/projects/elasticsearch", ("/clinton/projects/elasticsearch", "README.txt")),
        _grep_below(
            "/clinton",
            ("/clinton", "letter.txt"),
            ("/clinton/projects", "ideas.txt"),
            ("/clinton/projects/elasticsearch", "README.txt"),
        ),
        Write(title="A file is renamed", statements=("UPDATE files SET name = 'README.asciidoc' WHERE id = 1",)),
        _grep("/clinton/projects/elasticsearch", ("/clinton/projects/elasticsearch", "README.asciidoc")),
        Write(title="A directory is moved", statements=("UPDATE directories SET parent_id = 5 WHERE id = 3",)),
        _grep_below(
            "/alice",
            ("/alice", "photos.txt"),
            ("/alice/projects", "ideas.txt"),
            ("/alice/projects/elasticsearch", "README.asciidoc"),
        ),
        Write(
            title="Thousands of files are written",
            statements=(
                (
                    "INSERT INTO files (id, directory_id, name) "
                    "SELECT n, 4, 'log-' || n FROM generate_series(5, 3004) AS n"
                ),
            ),
        ),
        _count_below("/alice", "3,003"),
        Write(
            title="A directory is renamed while one file in it is renamed",
            statements=(
                "UPDATE directories SET name = 'bill' WHERE id = 5",
                "UPDATE files SET name = 'README.md' WHERE id = 1",
            ),
        ),
        _grep_below(
            "/bill",
            ("/bill", "photos.txt"),
            ("/bill/projects", "ideas.txt"),
            ("/bill/projects/elasticsearch", "README.md"),
        ),
        _count_below("/bill", "3,003"),
        _count_below("/alice", "0"),
    ),
    encore="UPDATE directories SET name = 'alice' WHERE id = 5",
)
