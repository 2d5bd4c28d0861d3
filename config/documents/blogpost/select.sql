-- A blog post as people search for it: with its author's name and its comments.
SELECT
    p.id AS _id,
    p.title,
    p.body,
    p.tags,
    p.created,
    (
        SELECT jsonb_build_object('id', u.id, 'name', u.name)
        FROM users AS u
        WHERE u.id = p.user_id
    ) AS "user",
    (
        SELECT coalesce(
            jsonb_agg(
                jsonb_build_object(
                    'name', c.name,
                    'comment', c.comment,
                    'age', c.age,
                    'stars', c.stars,
                    'date', c.date
                )
                ORDER BY c.id
            ),
            '[]'::jsonb
        )
        FROM comments AS c
        WHERE c.post_id = p.id
    ) AS comments
FROM posts AS p
