-- One change for each path of the nine documents. Beside each table's, its column that no document reads is changed.
UPDATE namespaces SET name = name || '+' WHERE id = 3
UPDATE users SET name = name || '+' WHERE id = 7
UPDATE projects SET name = name || '+' WHERE id = 11
UPDATE projects SET visibility = visibility + 1 WHERE id = 12
UPDATE projects SET namespace_id = 5 WHERE id = 13
UPDATE issues SET title = title || '+' WHERE id = 100
UPDATE issues SET author_id = 9 WHERE id = 101
UPDATE issues SET project_id = 21 WHERE id = 102
UPDATE issues SET deleted_at = now() WHERE id = 103
UPDATE merges SET title = title || '+' WHERE id = 200
UPDATE merges SET project_id = 22 WHERE id = 201
UPDATE epics SET title = title || '+' WHERE id = 300
UPDATE epics SET namespace_id = 4 WHERE id = 301
UPDATE notes SET body = body || '+' WHERE id = 1000
UPDATE notes SET body = body || '+' WHERE id = 1001
UPDATE notes SET body = body || '+' WHERE id = 1002
UPDATE notes SET author_id = 17 WHERE id = 1003
UPDATE notes SET deleted_at = now() WHERE id = 1004
UPDATE notes SET noteable_type = 'Issue' WHERE id = 1006
INSERT INTO notes (id, noteable_type, noteable_id, author_id, body) VALUES (10001, 'Issue', 400, 1, 'new')
DELETE FROM notes WHERE id = 1008
UPDATE labels SET title = title || '+' WHERE id = 30
UPDATE label_links SET target_id = 500 WHERE id = 1000
UPDATE label_links SET target_id = 501 WHERE id = 1001
INSERT INTO label_links VALUES (5001, 9, 'Issue', 502)
UPDATE reactions SET name = 'z' WHERE id = 600
DELETE FROM reactions WHERE id = 601
UPDATE pages SET title = title || '+' WHERE id = 40
UPDATE pages SET body = 'x' || body WHERE id = 41
UPDATE events SET action = 'pulled' WHERE id = 50
UPDATE events SET project_id = 51 WHERE id = 52
