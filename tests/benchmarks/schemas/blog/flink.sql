-- The blog as a job of Flink SQL. Flink has no other way to give a document its id than a column of the document.
CREATE TABLE users (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ({source}, 'table-name' = 'users', 'slot.name' = '{slot}users', 'debezium.publication.name' = 'flink_users');

-- The connector cannot read arrays: "Unsupported type: ARRAY<STRING>". As text, {{a,b}} arrives as [a, b].
CREATE TABLE posts (
    id BIGINT, user_id BIGINT, title STRING, body STRING, tags STRING, created TIMESTAMP_LTZ(6),
    PRIMARY KEY (id) NOT ENFORCED
)
WITH ({source}, 'table-name' = 'posts', 'slot.name' = '{slot}posts', 'debezium.publication.name' = 'flink_posts');

CREATE TABLE comments (
    id BIGINT, post_id BIGINT, name STRING, `comment` STRING, age SMALLINT, stars SMALLINT, `date` DATE,
    PRIMARY KEY (id) NOT ENFORCED
)
WITH ({source}, 'table-name' = 'comments', 'slot.name' = '{slot}comments',
    'debezium.publication.name' = 'flink_comments');

CREATE TABLE documents (
    id BIGINT, title STRING, body STRING, tags ARRAY<STRING>, created TIMESTAMP_LTZ(3),
    `user` ROW<id BIGINT, name STRING>,
    comments ARRAY<ROW<name STRING, `comment` STRING, age SMALLINT, stars SMALLINT, `date` DATE>>,
    PRIMARY KEY (id) NOT ENFORCED
)
WITH ('connector' = 'elasticsearch-7', 'hosts' = '{elasticsearch}', 'index' = '{index}',
    'sink.bulk-flush.interval' = '20ms', 'json.timestamp-format.standard' = 'ISO-8601');

INSERT INTO documents
SELECT
    p.id, p.title, p.body, SPLIT(SUBSTRING(p.tags FROM 2 FOR CHAR_LENGTH(p.tags) - 2), ', '), p.created,
    ROW(u.id, u.name), c.comments
FROM posts AS p
JOIN users AS u ON u.id = p.user_id
LEFT JOIN (
    -- ARRAY_AGG has no order, and none of comments is NULL, not an empty array.
    SELECT post_id, ARRAY_AGG(ROW(name, `comment`, age, stars, `date`)) AS comments FROM comments GROUP BY post_id
) AS c ON c.post_id = p.id;
