-- What a document relies on in the catalogue, as last found to be no obstacle: another type of the same text, say.
ALTER TABLE syncer.document ADD COLUMN accepted jsonb;

COMMENT ON COLUMN syncer.document.accepted IS 'What it reads in the catalogue, where that differs from what was applied and it goes on; nothing of it is executed.';
