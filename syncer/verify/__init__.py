"""Compares documents with their SELECT, repairs them, explains one document, and waits for one transaction.

Guarantee: a difference is called drift only after every change committed before it was seen is handled, and no open job
holds the document.

    compare   all documents, in both directions, in short snapshots; which have drifted, and which are busy; repairs
    diff      how a document differs, and what to do about it
    audit     the same comparison for an index that syncer does not write
    meaning   what the mapping of an index makes of a value
    explain   the difference, versions, dead letter and jobs of one document
    wait      waits for one transaction
"""
