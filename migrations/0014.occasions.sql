-- A refresh says in words what made it necessary.
ALTER TABLE syncer.job ADD COLUMN occasion text;

COMMENT ON COLUMN syncer.job.occasion IS 'What made a refresh necessary, in words; never what a row contains.';
