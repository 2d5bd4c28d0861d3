"""The guide's rows, as an application writes them."""

from __future__ import annotations

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

COMMENTED_POSTS = """
INSERT INTO posts (id, user_id, title, body, tags) VALUES
    (1, 1, 'Nest eggs', 'Making your money work...', '{cash,shares}'),
    (2, 3, 'Investment secrets', 'What they don''t tell you...', '{shares,equities}')
"""
COMMENTS = """
INSERT INTO comments (id, post_id, name, comment, age, stars, date) VALUES
    (1, 1, 'John Smith', 'Great article', 28, 4, '2014-09-01'),
    (2, 1, 'Alice White', 'More like this please', 31, 5, '2014-10-22'),
    (3, 2, 'Mary Brown', 'Lies, lies, lies', 42, 1, '2014-10-18'),
    (4, 2, 'John Smith', 'You''re making it up!', 28, 2, '2014-10-16')
"""

FILES = """
INSERT INTO directories (id, parent_id, name) VALUES
    (1, NULL, ''), (2, 1, 'clinton'), (3, 2, 'projects'), (4, 3, 'elasticsearch'), (5, 1, 'alice');
INSERT INTO files (id, directory_id, name, contents) VALUES
    (1, 4, 'README.txt', 'Starting a new Elasticsearch project is easy...'),
    (2, 3, 'ideas.txt', 'What to build with Elasticsearch next'),
    (3, 2, 'letter.txt', 'Dear friends of Elasticsearch'),
    (4, 5, 'photos.txt', 'The family photos, found by Elasticsearch')
"""
