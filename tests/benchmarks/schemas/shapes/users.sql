SELECT u.id AS _id, u.name, (SELECT count(*) FROM issues AS i WHERE i.author_id = u.id AND i.deleted_at IS NULL) AS issues
FROM users AS u
