"""Compares documents with their SELECT, repairs them, explains one document, and waits for one transaction.

Guarantee: a difference is called drift only after every change committed before it was seen has been handled.

    compare       all documents, in both directions; repairs
    recheck       reads what differs again, until its state is known
    diff          when two documents are equal, and how one differs
    pending_jobs  differences that a job will remove
    watermark     whether all changes committed before a moment have been handled
    wait          waits for one transaction; `progress` says how far its changes are
    last_result   the last result of each index
    explain       the difference, version, dead letter and jobs of one document
"""
