"""Web: the status page, its API, metrics and health, over HTTP, from each daemon.

    api       the component, and the responses
    app       what a request may read, and who responds to it
    server    a port, a few threads

Read-only. Listens on the loopback interface unless configured otherwise. docs/operating.md
"""
