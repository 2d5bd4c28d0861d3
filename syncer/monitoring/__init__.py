"""How syncer is doing: status, problems, metrics, health, the web page and doctor.

One poller asks the servers; the others show its answers.

Guarantees: nothing here writes a document or changes a job, except the actions that an operator with the token
requests on the page. If a server is silent, the figures of the others are still shown.
Uses every package below it.

    poll         asks the servers every few seconds
    server_poll  one of them, which may hang
    outage       how a server is down, in one sentence
    history      the readings of the last day
    status       everything known, in one reading
    problems     what needs an operator, and the action
    gauges       the same as metrics
    health       liveness (is a thread stuck?) and readiness of this process
    web          the status page and its API
    doctor       checks of the deployment
"""
