-- Posts with two link tables: each has many tags and many people, and each of those many posts.
CREATE TABLE posts (id bigint PRIMARY KEY, title text NOT NULL, body text NOT NULL);
CREATE TABLE tags (id bigint PRIMARY KEY, name text NOT NULL);
CREATE TABLE people (id bigint PRIMARY KEY, name text NOT NULL);

CREATE TABLE post_tags (
    post_id bigint REFERENCES posts ON DELETE CASCADE,
    tag_id  bigint REFERENCES tags,
    PRIMARY KEY (post_id, tag_id)
);

CREATE TABLE post_people (
    post_id   bigint REFERENCES posts ON DELETE CASCADE,
    person_id bigint REFERENCES people,
    PRIMARY KEY (post_id, person_id)
);

CREATE INDEX ON post_tags (tag_id);
CREATE INDEX ON post_people (person_id);
