-- Posts and their comments as parents and children: separate documents of one index. A comment lies on its post's
-- shard, since both have the post's id as _routing. Indexes on the expressions of _id are in syncer/demo/blog.sql.
SELECT
    'post-' || p.id::text AS _id,
    p.id AS _routing,
    jsonb_build_object('name', 'post') AS relation,
    p.title,
    p.body,
    NULL::text AS name,
    NULL::text AS comment,
    NULL::smallint AS age,
    NULL::smallint AS stars,
    NULL::date AS date
FROM posts AS p
UNION ALL
SELECT
    'comment-' || c.id::text,
    c.post_id,
    jsonb_build_object('name', 'comment', 'parent', 'post-' || c.post_id::text),
    NULL,
    NULL,
    c.name,
    c.comment,
    c.age,
    c.stars,
    c.date
FROM comments AS c
