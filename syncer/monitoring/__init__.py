"""How syncer is doing: status, problems, metrics, health, the web page and doctor.

One poller asks the servers; the others show its answers.

Guarantees: nothing here writes a document or changes a job, except the actions that an operator with the token
requests on the page. If a server is silent, the figures of the others are still shown.
Uses every package below it.

    poll              asks the servers every few seconds
    history           its readings of the last day
    status            everything known, in one reading
    problems          what needs an operator, and the action
    gauges            the same as metrics
    health            liveness (is a thread stuck?) and readiness of this process
    outage            how a server is down, in one sentence
    background_query  a query to a server that may hang
    web               the status page and its API
    doctor            checks of the deployment
"""
