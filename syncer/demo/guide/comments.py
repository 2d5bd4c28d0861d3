"""Posts and comments: nested in one document, or as parents and children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncer.demo.guide.rows import COMMENTED_POSTS, COMMENTS, USERS
from syncer.demo.model import Ask, Body, GuideModel, Row, TableReader, Write, hits, must

_ROWS = f"{USERS}; {COMMENTED_POSTS}; {COMMENTS}"

_NEST_EGGS = {"match": {"title": "eggs"}}
_BY_ALICE = {"match": {"comments.name": "Alice"}}
_OCTOBER = {"range": {"comments.date": {"gte": "2014-10-01", "lt": "2014-11-01"}}}


def _aged(age: int) -> Body:
    return {"match": {"comments.age": age}}


def _nested(*clauses: Body, **options: Any) -> Body:
    return {"nested": {"path": "comments", "query": must(*clauses), **options}}


def _by_alice(age: int, *answer: Row) -> Ask:
    return Ask(
        question=f"A post about eggs, with one comment that is by Alice and by someone aged {age}",
        document="blogpost",
        body={"query": must(_NEST_EGGS, _nested(_BY_ALICE, _aged(age), inner_hits={"_source": "comments.comment"}))},
        read=TableReader(columns=("_id", "title", "comment"), rows=_inner_comments),
        answer=answer,
    )


def _inner_comments(body: Body) -> Sequence[Row]:
    return [
        (hit["_id"], hit["_source"]["title"], inner["_source"]["comment"])
        for hit in body["hits"]["hits"]
        for inner in hit["inner_hits"]["comments"]["hits"]["hits"]
    ]


_EACH_BY_ITSELF = Ask(
    question="What plain objects would answer: some comment is by Alice, some comment is by someone aged 28",
    document="blogpost",
    body={"query": must(_NEST_EGGS, _nested(_BY_ALICE), _nested(_aged(28)))},
    read=hits("_id", "title"),
    answer=(("1", "Nest eggs"),),
)
_SORTED = Ask(
    question="Posts commented on in October 2014, by the fewest stars of those comments",
    document="blogpost",
    body={
        "query": _nested(_OCTOBER),
        "sort": {"comments.stars": {"order": "asc", "mode": "min", "nested": {"path": "comments", "filter": _OCTOBER}}},
    },
    read=TableReader(
        columns=("_id", "title", "stars"),
        rows=lambda body: [(hit["_id"], hit["_source"]["title"], str(hit["sort"][0])) for hit in body["hits"]["hits"]],
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
    read=TableReader(
        columns=("month", "comments", "stars"),
        rows=lambda body: [
            (month["key_as_string"], str(month["doc_count"]), f"{month['stars']['value']:.2f}")
            for month in body["aggregations"]["comments"]["by_month"]["buckets"]
        ],
    ),
    answer=(("2014-09", "1", "4.00"), ("2014-10", "3", "2.67")),
)

NESTED = GuideModel(
    name="nested",
    question="Posts by what one comment says and who says it; each post holds its comments.",
    price="A change of one comment writes its post with all its comments.",
    choice="Choose it when comments are few, are read with their post, and conditions must meet in one of them.",
    documents=("blogpost",),
    schema="blog",
    rows=_ROWS,
    steps=(
        _EACH_BY_ITSELF,
        _by_alice(28),
        _by_alice(31, ("1", "Nest eggs", "More like this please")),
        _SORTED,
        _BY_MONTH,
        Write(title="Alice turns out to be 28", statements=("UPDATE comments SET age = 28 WHERE id = 2",)),
        _by_alice(28, ("1", "Nest eggs", "More like this please")),
        _by_alice(31),
    ),
    encore="UPDATE comments SET age = 31 WHERE id = 2",
)


# Parent and child


def _commented(age: int, *answer: Row) -> Ask:
    by_alice = must({"match": {"name": "Alice"}}, {"match": {"age": age}})
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


PARENT_CHILD = GuideModel(
    name="parent-child",
    question="Posts by what one comment says and who says it; each comment is a document of its own.",
    price="Queries from child to parent and back are slower, and a post and its comments never leave one shard.",
    choice="Choose it when children are many and change more often than their parents; nested otherwise.",
    documents=("discussion",),
    schema="blog",
    rows=_ROWS,
    steps=(
        _commented(28),
        _commented(31, ("post-1", "1", "Nest eggs")),
        _comments_on(
            "eggs",
            ("comment-1", "1", "John Smith", "Great article", "4"),
            ("comment-2", "1", "Alice White", "More like this please", "5"),
        ),
        Write(title="Alice turns out to be 28", statements=("UPDATE comments SET age = 28 WHERE id = 2",)),
        _commented(28, ("post-1", "1", "Nest eggs")),
        Write(
            title="Her comment turns out to belong to the other post",
            statements=("UPDATE comments SET post_id = 2 WHERE id = 2",),
        ),
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
