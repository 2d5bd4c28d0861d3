SELECT n.id AS _id, n.author_id AS _routing, n.body, u.name AS author, i.title AS issue, ip.visibility,
       m.title AS merge_request, mp.namespace_id, e.title AS epic
FROM notes AS n JOIN users AS u ON u.id = n.author_id
LEFT JOIN issues AS i ON n.noteable_type = 'Issue' AND i.id = n.noteable_id LEFT JOIN projects AS ip ON ip.id = i.project_id
LEFT JOIN merges AS m ON n.noteable_type = 'MergeRequest' AND m.id = n.noteable_id
LEFT JOIN projects AS mp ON mp.id = m.project_id
LEFT JOIN epics AS e ON n.noteable_type = 'Epic' AND e.id = n.noteable_id
WHERE n.deleted_at IS NULL
