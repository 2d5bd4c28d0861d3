"""The models of "Elasticsearch: The Definitive Guide", with the guide's own data, questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncer.demo.model import Ask, Body, Model, Reader, Row, Write, hits, total

USERS = """
INSERT INTO users (id, name, email, born) VALUES
    (1, 'John Smith', 'john@smith.com', '1970-10-24'),
    (3, 'Alice John', 'alice@john.com', '1979-01-04')
"""
POSTS = """
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'It''s complicated...'),
    (4, 3, 'Relationships are cool', 'It''s not complicated at all...')
"""
_COMMENTED_POSTS = """
INSERT INTO posts (id, user_id, title, body, tags) VALUES
    (1, 1, 'Nest eggs', 'Making your money work...', '{cash,shares}'),
    (2, 3, 'Investment secrets', 'What they don''t tell you...', '{shares,equities}')
"""
_COMMENTS = """
INSERT INTO comments (id, post_id, name, comment, age, stars, date) VALUES
    (1, 1, 'John Smith', 'Great article', 28, 4, '2014-09-01'),
    (2, 1, 'Alice White', 'More like this please', 31, 5, '2014-10-22'),
    (3, 2, 'Mary Brown', 'Lies, lies, lies', 42, 1, '2014-10-18'),
    (4, 2, 'John Smith', 'You''re making it up!', 28, 2, '2014-10-16')
"""
_FILES = """
INSERT INTO directories (id, parent_id, name) VALUES
    (1, NULL, ''), (2, 1, 'clinton'), (3, 2, 'projects'), (4, 3, 'elasticsearch'), (5, 1, 'alice');
INSERT INTO files (id, directory_id, name, contents) VALUES
    (1, 4, 'README.txt', 'Starting a new Elasticsearch project is easy...'),
    (2, 3, 'ideas.txt', 'What to build with Elasticsearch next'),
    (3, 2, 'letter.txt', 'Dear friends of Elasticsearch'),
    (4, 5, 'photos.txt', 'The family photos, found by Elasticsearch')
"""

_RENAME = Write(
    title="John Smith becomes John Doe", statements=("UPDATE users SET name = 'John Doe' WHERE id = 1",)
)

_ENCORE = "UPDATE users SET name = 'Johnny Doe' WHERE id = 1"


def _all(*clauses: Body) -> Body:
    return {"bool": {"must": list(clauses)}} if len(clauses) > 1 else clauses[0]


# Users and posts

_TITLED = {"match": {"title": "relationships"}}
_BY_JOHN = {"match": {"user.name": "John"}}


def _users(body: Body) -> list[int]:
    return [int(hit["_id"]) for hit in body["hits"]["hits"]]


def _join(name: str) -> tuple[Ask, Ask]:
    """The two queries; user 1 has that name."""
    return (
        Ask(
            question="First the users called John",
            document="user",
            body={"query": {"match": {"name": "John"}}, "size": 1000},
            read=Reader(
                columns=("_id", "name"), rows=lambda body: sorted(hits("_id", "name").rows(body))
            ),
            answer=(("1", name), ("3", "Alice John")),
        ),
        Ask(
            question='Then posts titled "relationships" by those users',
            document="post",
            body=lambda users: {
                "query": {"bool": {"must": [_TITLED], "filter": [{"terms": {"user_id": _users(users)}}]}}
            },
            read=hits("_id", "title", "user_id"),
            answer=(("2", "Relationships", "1"), ("4", "Relationships are cool", "3")),
        ),
    )


JOIN = Model(
    name="join",
    question='Posts titled "relationships" by users called John; the name is with the user only.',
    price="Two queries, and the list of ids in the second grows with the users that the first one finds.",
    choice="Choose it when few users match and names change often: a rename writes one small document.",
    documents=("user", "post"),
    schema="blog",
    rows=f"{USERS}; {POSTS}",
    steps=(*_join("John Smith"), _RENAME, *_join("John Doe")),
    encore=_ENCORE,
)


def _denormalised(name: str) -> Ask:
    return Ask(
        question='Posts titled "relationships" by users called John, in one query',
        document="blogpost",
        body={"query": _all(_TITLED, _BY_JOHN)},
        read=hits("_id", "title", "user.id", "user.name"),
        answer=(("2", "Relationships", "1", name), ("4", "Relationships are cool", "3", "Alice John")),
    )


DENORMALISED = Model(
    name="denormalised",
    question="The same in one query; the name is in each post as well.",
    price="A rename writes every post of that user, and each post stores the name once more.",
    choice="Choose it when posts are searched far more often than users are renamed, which is nearly always.",
    documents=("blogpost",),
    schema="blog",
    rows=f"{USERS}; {POSTS}",
    steps=(_denormalised("John Smith"), _RENAME, _denormalised("John Doe")),
    encore=_ENCORE,
)


def _authors(body: Body) -> Sequence[Row]:
    return [
        (author["key"], str(author["doc_count"]), post["_source"]["title"])
        for author in body["aggregations"]["users"]["buckets"]
        for post in author["blogposts"]["hits"]["hits"]
    ]


def _collapse(name: str) -> Ask:
    return Ask(
        question="The same posts, grouped by author, the author of the best match first",
        document="blogpost",
        body={
            "size": 0,
            "query": _all(_TITLED, _BY_JOHN),
            "aggs": {
                "users": {
                    "terms": {"field": "user.name.raw", "order": {"top_score": "desc"}},
                    "aggs": {
                        "top_score": {"max": {"script": {"source": "_score"}}},
                        "blogposts": {"top_hits": {"size": 5, "_source": ["title"]}},
                    },
                }
            },
        },
        read=Reader(columns=("author", "posts", "title"), rows=_authors),
        answer=((name, "1", "Relationships"), ("Alice John", "1", "Relationships are cool")),
    )


COLLAPSE = Model(
    name="collapse",
    question="The best posts, grouped by author, the best author first.",
    price="The groups cannot be paged through, and over several shards the scores that order them are each shard's own.",
    choice="Choose it when a page shows the few best groups; it needs the author's name in each post, as a keyword.",
    documents=("blogpost",),
    schema="blog",
    rows=f"{USERS}; {POSTS}",
    steps=(_collapse("John Smith"), _RENAME, _collapse("John Doe")),
    encore=_ENCORE,
)


# A filesystem

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


FILES = Model(
    name="files",
    question="Files by their contents, in one directory or anywhere below it.",
    price="Renaming or moving a directory writes every file below it.",
    choice="Choose it when files are searched by place far more often than directories are renamed.",
    documents=("file",),
    schema="filesystem",
    rows=_FILES,
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
                "INSERT INTO files (id, directory_id, name) SELECT 100 + n, 4, 'log-' || n FROM generate_series(1, 3000) AS n",
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


# Comments

_NEST_EGGS = {"match": {"title": "eggs"}}
_BY_ALICE = {"match": {"comments.name": "Alice"}}
_OCTOBER = {"range": {"comments.date": {"gte": "2014-10-01", "lt": "2014-11-01"}}}


def _aged(age: int) -> Body:
    return {"match": {"comments.age": age}}


def _nested(*clauses: Body, **options: Any) -> Body:
    return {"nested": {"path": "comments", "query": _all(*clauses), **options}}


def _by_alice(age: int, *answer: Row) -> Ask:
    return Ask(
        question=f"A post about eggs, with one comment that is by Alice and by somebody aged {age}",
        document="blogpost",
        body={"query": _all(_NEST_EGGS, _nested(_BY_ALICE, _aged(age), inner_hits={"_source": "comments.comment"}))},
        read=Reader(columns=("_id", "title", "comment"), rows=_inner_comments),
        answer=answer,
    )


def _inner_comments(body: Body) -> Sequence[Row]:
    return [
        (hit["_id"], hit["_source"]["title"], inner["_source"]["comment"])
        for hit in body["hits"]["hits"]
        for inner in hit["inner_hits"]["comments"]["hits"]["hits"]
    ]


_EACH_BY_ITSELF = Ask(
    question="What plain objects would answer: some comment is by Alice, some comment is by somebody aged 28",
    document="blogpost",
    body={"query": _all(_NEST_EGGS, _nested(_BY_ALICE), _nested(_aged(28)))},
    read=hits("_id", "title"),
    answer=(("1", "Nest eggs"),),
)
_SORTED = Ask(
    question="Posts commented on in October 2014, by the fewest stars of those comments",
    document="blogpost",
    body={
        "query": _nested(_OCTOBER),
        "sort": {
            "comments.stars": {"order": "asc", "mode": "min", "nested": {"path": "comments", "filter": _OCTOBER}}
        },
    },
    read=Reader(
        columns=("_id", "title", "stars"),
        rows=lambda body: [
            (hit["_id"], hit["_source"]["title"], str(hit["sort"][0])) for hit in body["hits"]["hits"]
        ],
    ),
    answer=(("2", "Investment secrets", "1"), ("1", "Nest eggs", "5")),
)
_BY_MONTH = Ask(
    question="Stars by month, over all comments",
    document="blogpost",
    body={
        "size": 0,
        "aggs": {
            "comments": {
                "nested": {"path": "comments"},
                "aggs": {
                    "by_month": {
                        "date_histogram": {
                            "field": "comments.date",
                            "calendar_interval": "month",
                            "format": "yyyy-MM",
                        },
                        "aggs": {"stars": {"avg": {"field": "comments.stars"}}},
                    }
                },
            }
        },
    },
    read=Reader(
        columns=("month", "comments", "stars"),
        rows=lambda body: [
            (month["key_as_string"], str(month["doc_count"]), f"{month['stars']['value']:.2f}")
            for month in body["aggregations"]["comments"]["by_month"]["buckets"]
        ],
    ),
    answer=(("2014-09", "1", "4.00"), ("2014-10", "3", "2.67")),
)

NESTED = Model(
    name="nested",
    question="Posts by what one comment says and who says it; comments live in the post.",
    price="A change of one comment writes its post with all its comments.",
    choice="Choose it when comments are few, are read with their post, and conditions must meet in one of them.",
    documents=("blogpost",),
    schema="blog",
    rows=f"{USERS}; {_COMMENTED_POSTS}; {_COMMENTS}",
    steps=(
        _EACH_BY_ITSELF,
        _by_alice(28),
        _by_alice(31, ("1", "Nest eggs", "More like this please")),
        _SORTED,
        _BY_MONTH,
        Write(title="Alice was 28", statements=("UPDATE comments SET age = 28 WHERE id = 2",)),
        _by_alice(28, ("1", "Nest eggs", "More like this please")),
        _by_alice(31),
    ),
    encore="UPDATE comments SET age = 31 WHERE id = 2",
)


# Parent and child


def _commented(age: int, *answer: Row) -> Ask:
    by_alice = _all({"match": {"name": "Alice"}}, {"match": {"age": age}})
    return Ask(
        question=f"Posts with a comment by Alice aged {age}",
        document="discussion",
        body={"query": {"has_child": {"type": "comment", "query": by_alice}}},
        read=hits("_id", "_routing", "title"),
        answer=answer,
    )


def _comments_on(title: str, *answer: Row) -> Ask:
    return Ask(
        question=f'Comments on posts titled "{title}", by their stars',
        document="discussion",
        body={
            "query": {"has_parent": {"parent_type": "post", "query": {"match": {"title": title}}}},
            "sort": "stars",
        },
        read=hits("_id", "_routing", "name", "comment", "stars"),
        answer=answer,
    )


PARENT_CHILD = Model(
    name="parent-child",
    question="The same questions; each comment is a document of its own, on its post's shard.",
    price="Queries from child to parent and back are slower, and a post and its comments never leave one shard.",
    choice="Choose it when children are many and change more often than their parents; nested otherwise.",
    documents=("discussion",),
    schema="blog",
    rows=f"{USERS}; {_COMMENTED_POSTS}; {_COMMENTS}",
    steps=(
        _commented(28),
        _commented(31, ("post-1", "1", "Nest eggs")),
        _comments_on(
            "eggs",
            ("comment-1", "1", "John Smith", "Great article", "4"),
            ("comment-2", "1", "Alice White", "More like this please", "5"),
        ),
        Write(title="Alice was 28", statements=("UPDATE comments SET age = 28 WHERE id = 2",)),
        _commented(28, ("post-1", "1", "Nest eggs")),
        Write(title="She meant the other post", statements=("UPDATE comments SET post_id = 2 WHERE id = 2",)),
        _commented(28, ("post-2", "2", "Investment secrets")),
        _comments_on(
            "secrets",
            ("comment-3", "2", "Mary Brown", "Lies, lies, lies", "1"),
            ("comment-4", "2", "John Smith", "You're making it up!", "2"),
            ("comment-2", "2", "Alice White", "More like this please", "5"),
        ),
    ),
    encore="UPDATE comments SET stars = 3 WHERE id = 2",
)


MODELS = {model.name: model for model in (JOIN, DENORMALISED, COLLAPSE, FILES, NESTED, PARENT_CHILD)}
"""By name, in the guide's order."""
