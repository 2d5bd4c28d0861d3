"""Web: the status page, its API, metrics and health, over HTTP, from each daemon.

    api       what each request is answered with
    server    what a request may have, and the port

Read-only. Listens on the loopback interface unless configured otherwise. docs/operating.md
"""
