SELECT p.id AS _id, p.name, p.visibility, s.name AS namespace,
       (SELECT jsonb_agg(l.title ORDER BY l.id) FROM labels AS l WHERE l.project_id = p.id) AS labels
FROM projects AS p JOIN namespaces AS s ON s.id = p.namespace_id
