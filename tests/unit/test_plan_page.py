"""What a plan says of a new index."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from syncer.plan.caution import Kind, Warned
from syncer.plan.cost import Cost
from syncer.plan.estimate import Outcome
from syncer.plan.forecast import DocumentForecast, Forecast, TableForecast
from syncer.plan.page import show_forecast


def heading(document: DocumentForecast) -> str:
    """What a plan begins with."""
    console = Console(width=60)
    seen = Forecast(is_migrated=True, documents=(document,), missing_indexes=(), released=(), forgotten=())
    with console.capture() as said:
        show_forecast(console, seen)
    assert not seen.is_refused
    return said.get().strip()


def test_a_new_index_is_said_with_its_reason_and_how_long_it_takes() -> None:
    """On one line, with the server's words as they are; so is one that is not needed, without a reason."""
    document = DocumentForecast(
        name="blogpost",
        index="blog",
        refusals=(),
        outcome=Outcome.REINDEX,
        reason="mapper [title] cannot be changed from type [text] to [keyword]",
        documents=90_000,
        fill_seconds=12.3,
        sampled=200,
    )
    assert heading(document) == (
        "blogpost → blog: needs a new index: mapper [title] cannot be changed from type [text] to [keyword]; "
        "90,000 documents, about 12 s to fill (measured on 200)"
    )
    assert heading(replace(document, documents=None)).endswith("[keyword]; too many documents to count in time")
    in_place = replace(document, outcome=Outcome.IN_PLACE, reason=None, fill_seconds=None)
    assert heading(in_place) == "blogpost → blog: changed in place, 90,000 documents"


def test_of_a_count_that_failed_on_the_data_nothing_is_said() -> None:
    """A SELECT that fails on a row is not called too large; what fails, the warning says."""
    failing = Warned(kind=Kind.FAILS, field="", what="division by zero", mend="Mend the data.")
    document = DocumentForecast(name="a", index="a", refusals=(), outcome=Outcome.NEW, warnings=(failing,))
    for reason, said in ((None, "a → a: new index"), ("why", "a → a: new index: why")):
        assert heading(replace(document, reason=reason)).splitlines()[0] == said


def test_the_name_of_a_table_is_no_markup() -> None:
    """One that reads like a colour is printed letter by letter."""
    scan = Cost(total=1, seconds=1, rows=1, scans=('public."[red]"',))
    table = TableForecast(
        relation="public.a",
        rows=1,
        watched=(),
        routing=(),
        is_derived=True,
        finding=(),
        capture="new",
        is_owned=True,
    )
    document = DocumentForecast(
        name="a", index="a", refusals=(), outcome=Outcome.NEW, compose=scan, sampled=1, tables=(table,)
    )
    assert 'reads all of public."[red]"' in heading(document)
