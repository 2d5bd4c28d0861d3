SELECT
    p.id AS _id,
    p.title,
    p.body,
    (
        SELECT coalesce(jsonb_agg(jsonb_build_object('id', t.id, 'name', t.name) ORDER BY t.id), '[]'::jsonb)
        FROM post_tags AS pt
        JOIN tags AS t ON t.id = pt.tag_id
        WHERE pt.post_id = p.id
    ) AS tags,
    (
        SELECT coalesce(jsonb_agg(jsonb_build_object('id', h.id, 'name', h.name) ORDER BY h.id), '[]'::jsonb)
        FROM post_people AS pp
        JOIN people AS h ON h.id = pp.person_id
        WHERE pp.post_id = p.id
    ) AS people
FROM posts AS p
