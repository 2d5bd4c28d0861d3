"""`syncer doctor`: settings, privileges and states of the servers that a guarantee rests on, each with its fix.

What `syncer status`, `plan` and the daemon's log report is not checked again here.

    check         what a check is, and what it finds     deployment    the servers, asked without changing anything
    postgres, kafka, elasticsearch   the checks          examination   all checks, one after another
"""
