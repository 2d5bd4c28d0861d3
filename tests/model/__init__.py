"""The protocol as small models, each explored completely: every order of steps, every crash, every stall.

    explorer              visits all states of a model, breadth first, and finds the shortest path to a wrong one

    writing               the version rule: receive, assign, read, write                worker, indexing, elasticsearch
    moving                a document that changes its shard                             documents, elasticsearch
    routing               from a changed row to the documents that show it              capture, lineage, documents
    relaying              from the outbox to the topic                                  relay, capture
    progressing           what counts as handled, whatever Kafka loses                  capture, relay, kafka, worker
    cleaning_up           a job beside live traffic, and the orphans in Elasticsearch   jobs, indexing, worker
    comparing             a refresh that leaves out what is equal                       jobs, indexing
    fanning               fan-outs, and the changes that join them                      jobs
    reindexing            a new definition, a new index, the alias                      apply, documents, elasticsearch
    suspending            a document that is suspended, and the next revision           documents, indexing, apply
    sessions              a failover while a worker lives on                            worker
    marks                 what a failover has taken back is written again               indexing, elasticsearch, jobs
    fencing               late requests of an earlier epoch change nothing              elasticsearch, indexing
    overtaking            two primaries that live: one is followed                      indexing, elasticsearch

The last column names the packages that keep the rules. Run the models with ``python -m tests.model``;
docs/protocol.md explains them and lists their rules.
"""
