"""Scenarios on other versions of Postgres, Kafka and Elasticsearch, and on OpenSearch."""
