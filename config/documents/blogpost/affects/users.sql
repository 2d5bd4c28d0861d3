-- A changed user: the posts that show the name.
SELECT p.id AS _id
FROM posts AS p
JOIN %(rows)s AS changed ON p.user_id = changed.id
