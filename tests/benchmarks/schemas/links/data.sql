-- Each post has two tags and two people, of a thousand of each; the first twenty have ten times as many posts.
INSERT INTO tags SELECT n, 'Tag ' || n FROM generate_series(1, 1000) AS n;
INSERT INTO people SELECT n, 'Person ' || n FROM generate_series(1, 1000) AS n;
INSERT INTO posts SELECT n, 'Post ' || n, repeat(md5(n::text), 10) FROM generate_series(1, :posts) AS n;
INSERT INTO post_tags SELECT n, 1 + n % 20 FROM generate_series(1, :posts) AS n;
INSERT INTO post_tags SELECT n, 21 + n % 980 FROM generate_series(1, :posts) AS n;
INSERT INTO post_people SELECT n, 1 + n * 7 % 20 FROM generate_series(1, :posts) AS n;
INSERT INTO post_people SELECT n, 21 + n * 7 % 980 FROM generate_series(1, :posts) AS n;
ANALYZE;
