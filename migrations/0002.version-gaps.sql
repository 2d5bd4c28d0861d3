-- A version is epoch << 51 | number << 8 from now on: between two versions there is a gap, so that a client that raises the
-- version of a document by one, as _update_by_query does, does not reach the next. The next writer enters another epoch,
-- whose versions are all greater than those before, and every document is written again.

ALTER TABLE syncer.cluster_identity DROP CONSTRAINT cluster_identity_epoch_check;
ALTER TABLE syncer.cluster_identity ADD CONSTRAINT cluster_identity_epoch_check CHECK (epoch < 1 << 12);

UPDATE syncer.cluster_identity SET timeline = 0;
DELETE FROM syncer.version_time;
