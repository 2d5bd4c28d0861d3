-- A post that holds only its user's id: the other half of a join that the application makes.
SELECT p.id AS _id, p.user_id, p.title, p.body
FROM posts AS p
