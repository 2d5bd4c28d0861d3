-- A changed directory: every file below it. UNION, not UNION ALL: each directory is visited once.
-- OFFSET 0 makes each step a look into the index, whatever the planner believes: renaming a small directory
-- does not read all files.
WITH RECURSIVE below AS (
    SELECT changed.id
    FROM %(rows)s AS changed
    UNION
    SELECT child.id
    FROM below
    CROSS JOIN LATERAL (SELECT d.id FROM directories AS d WHERE d.parent_id = below.id OFFSET 0) AS child
)
SELECT file.id AS _id
FROM below
CROSS JOIN LATERAL (SELECT f.id FROM files AS f WHERE f.directory_id = below.id OFFSET 0) AS file
