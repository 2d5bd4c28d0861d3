"""The topic of changes: create, produce and consume it. Needed by those only who set ``kafka.bootstrap_servers``.

Guarantees: a record counts as published only when all in-sync replicas have acknowledged it. Records that are gone
before they were handled are noticed by the chain of their numbers: see `syncer.capture.progress`.

    topic     creates the topic; says whether Kafka answers
    producer  publishes numbered records; a change that is too large goes without its row
    consumer  receives them as a member of the workers' group; finds what is lost
"""
