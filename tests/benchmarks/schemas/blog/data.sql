-- The blog's posts for the benchmarks, each with two comments and its author's name; a body has :sentences of some 100
-- bytes. :posts is how many. The same numbers make the same posts. The first :large are one author's (1001), the next :middle
-- another's (1002), and the rest is dealt out among a thousand.
SELECT setseed(0.42);

CREATE TEMPORARY TABLE word AS
SELECT n AS id, substr(md5(n::text), 1, 2 + n % 7) AS text FROM generate_series(0, 4999) AS n;

-- Some words are frequent and most are rare, as in prose.
CREATE TEMPORARY TABLE sentence AS
SELECT s.id, string_agg(w.text, ' ') AS text
FROM (SELECT g / 10 AS id, (5000 * random() ^ 3)::int % 5000 AS word FROM generate_series(0, 49999) AS g) AS s
JOIN word AS w ON w.id = s.word
GROUP BY s.id;

CREATE UNIQUE INDEX ON sentence (id);
ANALYZE sentence;

INSERT INTO users (id, name, email)
SELECT n, 'Author ' || n, 'author' || n || '@example.com' FROM generate_series(1, 1002) AS n;

INSERT INTO posts (id, user_id, title, body, tags, created, views)
SELECT
    n,
    CASE WHEN n <= :large THEN 1001 WHEN n <= :large + :middle THEN 1002 ELSE 1 + n::bigint * 7919 % 1000 END,
    'Post ' || n || ' ' || (SELECT left(text, 30) FROM sentence WHERE id = n * 31 % 5000),
    (
        SELECT string_agg(text, '. ')
        FROM generate_series(0, :sentences - 1) AS g
        JOIN sentence ON id = (n * 37 + g * (1 + n / 5000) * 13) % 5000
    ),
    ARRAY['tag' || n % 20, 'tag' || n % 33],
    timestamptz '2024-01-01 00:00:00+00' + n * interval '1 minute',
    n % 1000
FROM generate_series(1, :posts) AS n;

INSERT INTO comments (post_id, name, comment, age, stars, date)
SELECT
    1 + n / 2,
    'Reader ' || n % 777,
    (SELECT text FROM sentence WHERE id = n % 5000),
    16 + n % 80,
    1 + n % 5,
    date '2024-01-01' + (n % 700)::int
FROM generate_series(0, 2 * :posts - 1) AS n;

ANALYZE users, posts, comments;
