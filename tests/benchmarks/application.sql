-- Copies of the blog's table for the benchmark of what triggers cost those who write: the same rows, indexes and foreign
-- keys. "plain" has no triggers. "least" has the least trigger that could capture changes: one row into a table with one
-- index.
DROP SCHEMA IF EXISTS plain, least CASCADE;
CREATE SCHEMA plain;
CREATE SCHEMA least;

CREATE TABLE plain.posts (LIKE public.posts INCLUDING ALL);
CREATE TABLE plain.comments (LIKE public.comments INCLUDING ALL);
INSERT INTO plain.posts SELECT * FROM public.posts;
ALTER TABLE plain.posts ADD FOREIGN KEY (user_id) REFERENCES public.users;
ALTER TABLE plain.comments ADD FOREIGN KEY (post_id) REFERENCES plain.posts ON DELETE CASCADE;

CREATE TABLE least.posts (LIKE public.posts INCLUDING ALL);
CREATE TABLE least.comments (LIKE public.comments INCLUDING ALL);
INSERT INTO least.posts SELECT * FROM public.posts;
ALTER TABLE least.posts ADD FOREIGN KEY (user_id) REFERENCES public.users;
ALTER TABLE least.comments ADD FOREIGN KEY (post_id) REFERENCES least.posts ON DELETE CASCADE;

CREATE TABLE least.change (id bigint, xid xid8 DEFAULT pg_current_xact_id());
CREATE INDEX ON least.change (xid);
CREATE FUNCTION least.note() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN INSERT INTO least.change (id) SELECT id FROM new_rows; RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE ON least.posts REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION least.note();
