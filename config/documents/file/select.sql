-- A file as people search for it: with the path of its directory, from the root.
SELECT
    f.id AS _id,
    f.name,
    (
        -- Up from the file's own directory. OFFSET 0 makes each step one look into the index, whatever the planner
        -- believes: a few rows for each file, however many directories there are.
        WITH RECURSIVE above AS (
            SELECT d.id, d.parent_id, d.name, 0 AS height
            FROM directories AS d
            WHERE d.id = f.directory_id
            UNION ALL
            SELECT parent.id, parent.parent_id, parent.name, above.height + 1
            FROM above
            CROSS JOIN LATERAL (
                SELECT d.id, d.parent_id, d.name FROM directories AS d WHERE d.id = above.parent_id OFFSET 0
            ) AS parent
        ) CYCLE id SET is_cycle USING visited
        SELECT coalesce(nullif(string_agg(above.name, '/' ORDER BY above.height DESC), ''), '/')
        FROM above
    ) AS path,
    f.contents
FROM files AS f
