-- Each table has one trigger for all its rows, which needs no key to find the old row of a new one: see
-- syncer/capture/triggers.py. `syncer apply` creates the triggers anew.

ALTER TABLE syncer.capture DROP COLUMN key;
