-- A document that cannot go on is halted, and skipped until the next generation: see syncer/halting.py.
ALTER TABLE syncer.document ADD COLUMN halted text, ADD COLUMN halted_at timestamptz;

COMMENT ON COLUMN syncer.document.halted IS 'What happened and what to do; NULL if the document is not halted.';

-- What was found out about a document that was applied before has another form now: apply finds it out again.
UPDATE syncer.document
SET halted = E'It was applied by an older syncer\nRun: syncer apply', halted_at = now(), filled_at = NULL,
    definition = jsonb_set(definition, '{dependencies}', '{
        "canonical_select": "", "id_type": "text", "fields": [], "root": null, "root_key": null,
        "tables": {}, "shapes": {}, "views": [], "lookups": []
    }');
