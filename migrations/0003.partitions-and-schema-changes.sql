-- What triggers need to capture partitioned tables, and tables whose columns an application has dropped or renamed.

ALTER TABLE syncer.capture ADD COLUMN files text[];

COMMENT ON COLUMN syncer.capture.files IS
    'The files of the table and its partitions as they were when all documents were last known to show their rows.';

-- The type of a column that a table has no more: see syncer/trigger.py.
CREATE TYPE syncer.gone AS ENUM ();

CREATE FUNCTION syncer.is_gone(syncer.gone) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE FUNCTION syncer.is_gone(anyelement) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';

COMMENT ON FUNCTION syncer.is_gone(anyelement) IS
    'Which of the two is meant, and so the answer, is known when a statement is planned: it costs nothing to ask.';

-- A json column may hold what jsonb does not take: \u0000, half of a surrogate pair, a number without measure.
-- The subtransactions write nothing, so that they never get an xid: they are cheap, and none is ever too many.
CREATE FUNCTION syncer.row_image(whole json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT
AS $image$
BEGIN
    RETURN whole::text::jsonb;
EXCEPTION WHEN OTHERS THEN
    BEGIN
        RETURN regexp_replace(whole::text, '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F]..)', '\1\\ufffd', 'g')::jsonb;
    EXCEPTION WHEN OTHERS THEN
        RETURN NULL;
    END;
END
$image$;

COMMENT ON FUNCTION syncer.row_image IS 'A whole row as jsonb, whatever is in it; null if there is no way.';
