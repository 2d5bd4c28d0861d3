"""Indices of ours that Postgres knows nothing of: somebody died, or the database was restored to before they were made.

Ours is what bears the mark of this installation, under whatever name; it is found by that name, or by its write alias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from syncer import definition, store
from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Mend, Symptom, consider, shell, wrong
from syncer.errors import SyncerError
from syncer.model import Target

_FIELDS = "*.aliases,*.mappings._meta.syncer"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stray:
    """An index of ours that no row of Postgres knows.

    Args:
        name: Its name.
        document: What was written to it.
        searched_as: The aliases by which searches find it.
    """

    name: str
    document: str
    searched_as: tuple[str, ...]


def _strays(patient: Patient) -> Iterator[_Stray]:
    installation = store.installation(patient.installed)
    known = {one.index_name for one in patient.documents}
    wanted = [Target.of_index("*").write_alias, *sorted({f"{one.index}-*" for one in patient.documents})]
    found = patient.elasticsearch.indices.get(index=wanted, expand_wildcards="all", filter_path=_FIELDS).body
    for name, body in sorted(found.items()):
        mark = body.get("mappings", {}).get("_meta", {}).get("syncer", {})
        if mark.get("installation") == installation and name not in known:
            aliases = body.get("aliases", {}).keys() - {Target.of_index(name).write_alias}
            yield _Stray(name=name, document=mark.get("document", ""), searched_as=tuple(sorted(aliases)))


@check(
    "elasticsearch.forgotten",
    "Searches find no index that Postgres knows nothing of",
    promises=(1, 3),
    why="Nobody writes to it: once Postgres is restored to before a document was put in force, what searches find "
    "stays as it was.",
)
def _forgotten(patient: Patient) -> Iterator[Symptom]:
    in_force = {one.index for one in patient.documents}
    for one in _strays(patient):
        aliases = [alias for alias in one.searched_as if alias not in in_force]  # those: see elasticsearch.aliases
        if aliases:
            yield wrong(
                f"Searches of {' and '.join(aliases)} find {one.name}, of {one.document}, which Postgres does not know",
                _taken_up(patient, one, aliases),
            )


def _taken_up(patient: Patient, stray: _Stray, aliases: list[str]) -> Mend:
    """What has searches find a document again that is followed; or nothing, if it has no folder any more."""
    try:
        written = {one.index for one in definition.load_all(patient.config_folder)}
    except SyncerError:
        written = set()
    if written.intersection(aliases):
        return shell("syncer apply", "It takes the index up again, or makes another one, and writes every document.")
    return patient.request(
        "DELETE",
        f"/{stray.name}",
        note=f"Is it searched yet? Then bring the folder of {stray.document} back first, and run: syncer apply",
    )


@check(
    "elasticsearch.left_over",
    "No index of ours is left over",
    promises=(),
    why="Nobody writes it and nobody searches it; it takes room.",
)
def _left_over(patient: Patient) -> Iterator[Symptom]:
    for one in _strays(patient):
        if not one.searched_as:
            yield consider(
                f"{one.name}, of {one.document}, was made by syncer, and is in force no more",
                patient.request("DELETE", f"/{one.name}"),
            )


CHECKS = (_forgotten, _left_over)
