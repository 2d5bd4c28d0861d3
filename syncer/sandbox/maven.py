"""Where a Maven coordinate is found: the resolver knows its repository, so no address stands in our code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgo.maven import MavenContext

if TYPE_CHECKING:
    from pathlib import Path


def address(coordinate: str) -> str:
    """The URL of ``group:artifact:version`` (a jar) or ``group:artifact:packaging:version``."""
    group, artifact, *packaging, version = coordinate.split(":")
    context = MavenContext()
    component = context.project(group, artifact).at_version(version)
    file = component.artifact(packaging=packaging[0] if packaging else "jar")
    repository = next(iter(context.remote_repos.values()))
    return f"{repository}/{component.path_prefix.as_posix()}/{file.filename}"


def file_name(coordinate: str) -> str:
    """The name of the coordinate's file, as the repository has it."""
    return address(coordinate).rsplit("/", maxsplit=1)[1]


def resolve(coordinates: tuple[str, ...], folder: Path) -> list[str]:
    """The given coordinates and all that they need at run time, as ``group:artifact:version``."""
    context = MavenContext(repo_cache=folder)
    roots = [context.create_dependency(coordinate) for coordinate in coordinates]
    dependencies = [dependency for found in context.resolver.resolve(roots) for dependency in found]
    return sorted(f"{one.groupId}:{one.artifactId}:{one.version}" for one in dependencies)
