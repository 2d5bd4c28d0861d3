-- What each job of Flink SQL begins with.
SET 'execution.target' = 'local';
SET 'table.dml-sync' = 'true';
SET 'parallelism.default' = '1';
SET 'table.local-time-zone' = 'UTC';
SET 'execution.buffer-timeout.interval' = '5 ms';
SET 'execution.checkpointing.interval' = '5s';
SET 'execution.checkpointing.dir' = 'file://{folder}/checkpoints';
-- With a parallelism of one, changes of a key cannot overtake each other. AUTO, the default, writes twice as often.
SET 'table.exec.sink.upsert-materialize' = 'NONE';
