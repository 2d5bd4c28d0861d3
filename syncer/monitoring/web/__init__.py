"""Web: the status page, its API, metrics and health, over HTTP, from each daemon.

    api       the component, the responses                   app       routes a request to its response
    access    what a request may read                        server    a port, a few threads

Read-only. Listens on the loopback interface unless configured otherwise. docs/operating.md
"""
