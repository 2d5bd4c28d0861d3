#!/usr/bin/env bash
# elasticsearch 8.19.3 (the Python client): `tasks.list()` issues a warning to its caller, that the API is a technical
# preview. With warnings as errors, the call raises before a request is
# sent. The same request by `perform_request` does not. `cluster.health()` warns in neither case.
#
# Seen:
#   tasks.list: GeneralAvailabilityWarning
#   perform_request: ConnectionError
#   cluster.health: ConnectionError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "elasticsearch==8.19.3"
"$folder/venv/bin/python" -W error - <<'PYTHON'
from collections.abc import Callable

from elasticsearch import Elasticsearch

client = Elasticsearch("http://127.0.0.1:9", max_retries=0)  # nothing listens there: a request that is sent fails


def outcome(call: Callable[[], object]) -> str:
    """The name of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


seen = {
    "tasks.list": outcome(lambda: client.tasks.list()),
    "perform_request": outcome(lambda: client.perform_request("GET", "/_tasks", headers={"accept": "application/json"})),
    "cluster.health": outcome(lambda: client.cluster.health()),
}
for name, raised in seen.items():
    print(f"{name}: {raised}")
assert seen == {
    "tasks.list": "GeneralAvailabilityWarning",
    "perform_request": "ConnectionError",
    "cluster.health": "ConnectionError",
}
PYTHON
