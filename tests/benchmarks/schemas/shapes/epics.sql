SELECT e.id AS _id, e.title, s.name AS namespace,
       (SELECT jsonb_agg(n.body ORDER BY n.id) FROM notes AS n
        WHERE n.noteable_type = 'Epic' AND n.noteable_id = e.id AND n.deleted_at IS NULL) AS notes
FROM epics AS e JOIN namespaces AS s ON s.id = e.namespace_id
