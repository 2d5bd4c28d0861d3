"""The models of "Elasticsearch: The Definitive Guide", with the guide's own data, questions and answers."""

from __future__ import annotations

from syncer.demo.guide.authors import COLLAPSE, DENORMALISED, JOIN
from syncer.demo.guide.comments import NESTED, PARENT_CHILD
from syncer.demo.guide.filesystem import FILES

MODELS = {model.name: model for model in (JOIN, DENORMALISED, COLLAPSE, FILES, NESTED, PARENT_CHILD)}
"""The models by name, in the guide's order."""
