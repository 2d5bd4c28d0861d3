-- A user by itself: half of a join that the application makes. The other half is config/documents/post.
SELECT u.id AS _id, u.name, u.email, u.born
FROM users AS u
