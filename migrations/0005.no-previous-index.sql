-- The index before is dropped once searches have switched. One that was kept for a rollback becomes an orphan, which the
-- next `syncer apply` drops.

INSERT INTO syncer.orphan_index (index_name, write_alias)
SELECT index_name, write_alias FROM syncer.document WHERE role = 'previous' ON CONFLICT DO NOTHING;
DELETE FROM syncer.document WHERE role = 'previous';

ALTER TABLE syncer.document DROP CONSTRAINT document_role_check;
ALTER TABLE syncer.document ADD CONSTRAINT document_role_check CHECK (role IN ('current', 'building'));

COMMENT ON COLUMN syncer.document.role IS 'current: searches find it. building: they will, once it is loaded.';
