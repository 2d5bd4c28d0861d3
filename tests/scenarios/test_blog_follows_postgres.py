"""A blog post follows everything that its SELECT reads."""

from __future__ import annotations

from tests.faults.harness import following
from tests.support.world import World

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'It''s complicated...'),
    (4, 3, 'Relationships are cool', 'It''s not complicated at all...');
INSERT INTO comments (id, post_id, name, comment, age, stars, date) VALUES
    (1, 2, 'Alice White', 'More like this please', 31, 5, '2014-10-22');
"""


CHANGES = (
    "UPDATE users SET name = 'John Doe' WHERE id = 1",
    "UPDATE posts SET user_id = 3 WHERE id = 2",
    "UPDATE posts SET id = 20 WHERE id = 4",
    "UPDATE posts SET id = 104 WHERE id = 20; UPDATE posts SET id = 20, title = 'back' WHERE id = 104",
    "UPDATE comments SET post_id = 20 WHERE id = 1",
    "UPDATE comments SET id = 7, stars = 1 WHERE id = 1",
    r"INSERT INTO comments (id, post_id, name, comment) VALUES (50, 2, 'x', E'line\nbreak \u2028 \"quoted\" \\ $1')",
    """
    WITH gone AS (DELETE FROM comments WHERE id = 7 RETURNING post_id)
    UPDATE posts SET title = 'lost a comment' WHERE id IN (SELECT post_id FROM gone)
    """,
    "TRUNCATE comments",
    "INSERT INTO posts (id, user_id, title, body) VALUES (20, 3, 'a', 'b') ON CONFLICT (id) DO UPDATE SET title = 'c'",
    "DELETE FROM posts WHERE id = 2; INSERT INTO posts (id, user_id, title, body) VALUES (2, 3, 'Again', '')",
    "INSERT INTO posts (id, user_id, title, body) VALUES (5, 1, 'alone', '')",
    "TRUNCATE posts CASCADE",
)


def test_every_kind_of_change_reaches_the_document(world: World) -> None:
    """Whatever statement an application uses, the document equals its SELECT afterwards."""
    world.sql(BLOG)
    with following(world) as follower:
        follower.drain()
        for change in CHANGES:
            world.sql(change)
            assert world.differences(), change
            follower.drain()
