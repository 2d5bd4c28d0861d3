"""Users and posts: joined in the application, denormalised, or grouped by author."""

from __future__ import annotations

from collections.abc import Sequence

from syncer.demo.guide.rows import POSTS, USERS
from syncer.demo.model import Ask, Body, GuideModel, Row, TableReader, Write, hits, must

_RENAME = Write(title="John Smith becomes John Doe", statements=("UPDATE users SET name = 'John Doe' WHERE id = 1",))

_ENCORE = "UPDATE users SET name = 'Johnny Doe' WHERE id = 1"

_TITLED = {"match": {"title": "relationships"}}
_BY_JOHN = {"match": {"user.name": "John"}}


def _users(body: Body) -> list[int]:
    return [int(hit["_id"]) for hit in body["hits"]["hits"]]


def _join(name: str) -> tuple[Ask, Ask]:
    """Return the two queries; user 1 has this name."""
    return (
        Ask(
            question="First the users called John",
            document="user",
            body={"query": {"match": {"name": "John"}}, "size": 1000},
            read=TableReader(columns=("_id", "name"), rows=lambda body: sorted(hits("_id", "name").rows(body))),
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


JOIN = GuideModel(
    name="join",
    question='Posts titled "relationships" by users called John, in two queries; only the user holds the name.',
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
        body={"query": must(_TITLED, _BY_JOHN)},
        read=hits("_id", "title", "user.id", "user.name"),
        answer=(("2", "Relationships", "1", name), ("4", "Relationships are cool", "3", "Alice John")),
    )


DENORMALISED = GuideModel(
    name="denormalised",
    question='Posts titled "relationships" by users called John, in one query; each post holds the name too.',
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
            "query": must(_TITLED, _BY_JOHN),
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
        read=TableReader(columns=("author", "posts", "title"), rows=_authors),
        answer=((name, "1", "Relationships"), ("Alice John", "1", "Relationships are cool")),
    )


COLLAPSE = GuideModel(
    name="collapse",
    question='Posts titled "relationships", grouped by author, the author of the best match first.',
    price="The groups cannot be paged through, and the scores that order them are comparable within one shard only.",
    choice="Choose it when a page shows the few best groups; it needs the author's name in each post, as a keyword.",
    documents=("blogpost",),
    schema="blog",
    rows=f"{USERS}; {POSTS}",
    steps=(_collapse("John Smith"), _RENAME, _collapse("John Doe")),
    encore=_ENCORE,
)
