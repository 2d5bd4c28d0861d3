SELECT g.id AS _id, g.title, left(g.body, 200) AS body, p.name AS project
FROM pages AS g JOIN projects AS p ON p.id = g.project_id
