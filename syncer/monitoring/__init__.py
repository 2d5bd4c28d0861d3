"""How syncer is doing: status, problems, metrics, health, the web page and doctor.

`status.Reader` asks the servers; the others show what it returns. Daemons report what they do, and what they retry.

Guarantees: nothing here writes a document or changes a job, except the actions that an operator with the token
requests on the page. If a server is silent, the figures of the others are still shown.
Uses every package below it.

    daemons      each daemon's row in Postgres: what it runs, whether it leads, what its components are retrying
    status       everything known, in one reading
    problems     what needs an operator, and the action
    gauges       the same as metrics
    health       liveness (is a thread stuck?) and readiness of this process
    web          the status page and its API
    doctor       one table of checks of the deployment, which `deployment` connects to
"""
