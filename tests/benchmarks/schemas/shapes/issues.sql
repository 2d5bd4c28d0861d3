SELECT i.id AS _id, i.title, p.name AS project, u.name AS author,
       (SELECT jsonb_agg(l.title ORDER BY l.id) FROM label_links AS k JOIN labels AS l ON l.id = k.label_id
        WHERE k.target_type = 'Issue' AND k.target_id = i.id) AS labels,
       (SELECT count(*) FROM notes AS n
        WHERE n.noteable_type = 'Issue' AND n.noteable_id = i.id AND n.deleted_at IS NULL) AS notes
FROM issues AS i JOIN projects AS p ON p.id = i.project_id JOIN users AS u ON u.id = i.author_id
WHERE i.deleted_at IS NULL
