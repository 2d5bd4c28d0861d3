SELECT e.id::text || ':' || extract(epoch FROM e.at AT TIME ZONE 'UTC')::text AS _id, e.project_id AS _routing, e.action,
       e.at, p.name AS project
FROM events AS e JOIN projects AS p ON p.id = e.project_id
