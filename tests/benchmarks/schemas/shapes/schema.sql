-- An issue tracker among :tables tables, 94 of them partitioned, with foreign keys in chains of three. Each table of the
-- tracker has a column `unread`.
CREATE TABLE namespaces (id int PRIMARY KEY, name text, unread text);
CREATE TABLE users (id int PRIMARY KEY, name text, unread text);
CREATE TABLE projects (id int PRIMARY KEY, namespace_id int REFERENCES namespaces, name text, visibility int, unread text);
CREATE TABLE issues (id int PRIMARY KEY, project_id int REFERENCES projects, author_id int REFERENCES users, title text,
                     deleted_at timestamptz, unread text);
CREATE TABLE merges (id int PRIMARY KEY, project_id int REFERENCES projects, author_id int REFERENCES users, title text,
                     unread text);
CREATE TABLE epics (id int PRIMARY KEY, namespace_id int REFERENCES namespaces, title text, unread text);
CREATE TABLE notes (id int PRIMARY KEY, noteable_type varchar(20), noteable_id int, author_id int REFERENCES users,
                    body text, deleted_at timestamptz, unread text);
CREATE TABLE labels (id int PRIMARY KEY, project_id int REFERENCES projects, title text, unread text);
CREATE TABLE label_links (id int PRIMARY KEY, label_id int REFERENCES labels, target_type varchar(20), target_id int,
                          unread text);
CREATE TABLE reactions (id int PRIMARY KEY, issue_id int REFERENCES issues, name text, unread text);
CREATE TABLE pages (id int PRIMARY KEY, project_id int REFERENCES projects, title text, body text, unread text);
CREATE TABLE events (id int, at timestamptz, project_id int REFERENCES projects, action text, unread text,
                     PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE VIEW issue_reactions AS SELECT issue_id, count(*) AS total, max(name) AS last FROM reactions GROUP BY issue_id;

INSERT INTO namespaces SELECT i, 'namespace ' || i FROM generate_series(1, 20) AS i;
INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 200) AS i;
INSERT INTO projects SELECT i, i % 20 + 1, 'project ' || i, i % 3 FROM generate_series(1, 100) AS i;
INSERT INTO issues SELECT i, i % 100 + 1, i % 200 + 1, 'issue ' || i, CASE WHEN i % 10 = 9 THEN now() END
                   FROM generate_series(1, 2000) AS i;
INSERT INTO merges SELECT i, i % 100 + 1, i % 200 + 1, 'merge request ' || i FROM generate_series(1, 2000) AS i;
INSERT INTO epics SELECT i, i % 20 + 1, 'epic ' || i FROM generate_series(1, 500) AS i;
INSERT INTO notes SELECT i, (ARRAY['Issue', 'MergeRequest', 'Epic'])[i % 3 + 1], i / 3 % 500 + 1, i % 200 + 1,
                         'note ' || i, CASE WHEN i % 10 = 9 THEN now() END FROM generate_series(1, 9000) AS i;
INSERT INTO labels SELECT i, i % 100 + 1, 'label ' || i FROM generate_series(1, 500) AS i;
INSERT INTO label_links SELECT i, i % 500 + 1, (ARRAY['Issue', 'MergeRequest'])[i % 2 + 1], i / 2 % 2000 + 1
                        FROM generate_series(1, 4000) AS i;
INSERT INTO reactions SELECT i, i % 2000 + 1, 'reaction ' || i % 7 FROM generate_series(1, 200000) AS i;
INSERT INTO pages SELECT i, i % 100 + 1, 'page ' || i, repeat(md5(i::text), 3000) FROM generate_series(1, 200) AS i;
INSERT INTO events SELECT i, '2026-01-01'::timestamptz + i * interval '1 minute', i % 100 + 1, 'pushed'
                   FROM generate_series(1, 2000) AS i;
CREATE INDEX ON projects (namespace_id);
CREATE INDEX ON issues (project_id);
CREATE INDEX ON issues (author_id);
CREATE INDEX ON merges (project_id);
CREATE INDEX ON merges (author_id);
CREATE INDEX ON epics (namespace_id);
CREATE INDEX ON notes (noteable_id, noteable_type) WHERE deleted_at IS NULL;
CREATE INDEX ON notes (author_id);
CREATE INDEX ON labels (project_id);
CREATE INDEX ON label_links (label_id);
CREATE INDEX ON label_links (target_id, target_type);
CREATE INDEX ON reactions (issue_id);
CREATE INDEX ON pages (project_id);
CREATE INDEX ON events (project_id);
CREATE INDEX ON events ((id::text || ':' || extract(epoch FROM at AT TIME ZONE 'UTC')::text));

DO $$ BEGIN
    FOR n IN 1..93 LOOP
        EXECUTE format('CREATE TABLE parted_%s (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)', n);
        EXECUTE format('CREATE TABLE parted_%1$s_1 PARTITION OF parted_%1$s DEFAULT', n);
    END LOOP;
    FOR n IN 1..:tables - 13 - 2 * 93 LOOP
        EXECUTE format('CREATE TABLE other_%s (id int PRIMARY KEY, other_id int%s, name text, at timestamptz)', n,
                       CASE WHEN n % 3 <> 1 THEN format(' REFERENCES other_%s', n - 1) END);
    END LOOP;
END $$;
ANALYZE;
