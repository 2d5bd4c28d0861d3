SELECT i.id AS _id, i.title, r.total, r.last FROM issues AS i JOIN issue_reactions AS r ON r.issue_id = i.id
