"""How syncer is doing: status, problems, metrics, the web page and doctor.

`status.Reader` asks the servers; the others show what it returns. Daemons report what they do, and what they retry.

Guarantees: nothing here writes a document or changes a job. If a server is silent, the figures of the others are still
shown. Uses every package below it.

    daemons      each daemon's row in Postgres: what it runs, whether it leads, and what its components are retrying
    status       everything known, in one reading
    problems     what needs an operator, and the action
    gauges       the same as metrics
    web          the status page, its API and health checks
    doctor       one table of checks of the deployment
"""
