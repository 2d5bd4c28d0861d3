-- Posts, their tags and their people as a job of Flink SQL.
CREATE TABLE posts (id BIGINT, title STRING, body STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ({source}, 'table-name' = 'posts', 'slot.name' = '{slot}posts', 'debezium.publication.name' = 'flink_posts');

CREATE TABLE tags (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ({source}, 'table-name' = 'tags', 'slot.name' = '{slot}tags', 'debezium.publication.name' = 'flink_tags');

CREATE TABLE people (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ({source}, 'table-name' = 'people', 'slot.name' = '{slot}people', 'debezium.publication.name' = 'flink_people');

CREATE TABLE post_tags (post_id BIGINT, tag_id BIGINT, PRIMARY KEY (post_id, tag_id) NOT ENFORCED)
WITH ({source}, 'table-name' = 'post_tags', 'slot.name' = '{slot}post_tags',
    'debezium.publication.name' = 'flink_post_tags');

CREATE TABLE post_people (post_id BIGINT, person_id BIGINT, PRIMARY KEY (post_id, person_id) NOT ENFORCED)
WITH ({source}, 'table-name' = 'post_people', 'slot.name' = '{slot}post_people',
    'debezium.publication.name' = 'flink_post_people');

CREATE TABLE documents (
    id BIGINT, title STRING, body STRING,
    tags ARRAY<ROW<id BIGINT, name STRING>>, people ARRAY<ROW<id BIGINT, name STRING>>,
    PRIMARY KEY (id) NOT ENFORCED
)
WITH ('connector' = 'elasticsearch-7', 'hosts' = '{elasticsearch}', 'index' = '{index}',
    'sink.bulk-flush.interval' = '20ms');

INSERT INTO documents
SELECT p.id, p.title, p.body, t.tags, h.people
FROM posts AS p
LEFT JOIN (
    SELECT pt.post_id, ARRAY_AGG(ROW(t.id, t.name)) AS tags
    FROM post_tags AS pt JOIN tags AS t ON t.id = pt.tag_id GROUP BY pt.post_id
) AS t ON t.post_id = p.id
LEFT JOIN (
    SELECT pp.post_id, ARRAY_AGG(ROW(h.id, h.name)) AS people
    FROM post_people AS pp JOIN people AS h ON h.id = pp.person_id GROUP BY pp.post_id
) AS h ON h.post_id = p.id;
