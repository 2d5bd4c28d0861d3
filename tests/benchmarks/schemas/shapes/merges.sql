SELECT m.id AS _id, m.title, p.name AS project, u.name AS author,
       (SELECT jsonb_agg(l.title ORDER BY l.id) FROM label_links AS k JOIN labels AS l ON l.id = k.label_id
        WHERE k.target_type = 'MergeRequest' AND k.target_id = m.id) AS labels
FROM merges AS m JOIN projects AS p ON p.id = m.project_id JOIN users AS u ON u.id = m.author_id
