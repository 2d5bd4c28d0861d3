-- A changed comment: the post that it belongs to, and the one that it belonged to.
SELECT changed.post_id AS _id
FROM %(rows)s AS changed
