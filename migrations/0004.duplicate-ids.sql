-- A document whose SELECT returns an id more than once resumes by itself once it does not.

ALTER TABLE syncer.document DROP CONSTRAINT document_suspended_by_check;
ALTER TABLE syncer.document ADD CONSTRAINT document_suspended_by_check
    CHECK (suspended_by IN ('schema', 'unavailable', 'ids'));
