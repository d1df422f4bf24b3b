"""A suite: models with their batches and clusters, as a YAML file, for `placer bench strategies --suite`.

    models:
      - {name: gpt2, model: "examples.models:gpt2", batch: 64x1024}
    clusters: [h100x8, h100x4+a100x4]

In: the file. Out: a `Suite`, or a UsageError with file, line and field.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from placer.errors import UsageError
from placer.io.files import read_text
from placer.io.yaml_document import parse, validated


class SuiteModel(BaseModel):
    """A model as `placer plan` takes it, by a name of its own; an empty batch: what its configuration implies."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    model: str
    batch: str = ""


class Suite(BaseModel):
    """Every model is planned on every cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    models: tuple[SuiteModel, ...]
    clusters: tuple[str, ...]


def read_suite(path: str) -> Suite:
    """The suite of a file."""
    suite = validated(parse(read_text(path, "the suite"), path), Suite)
    names = [model.name for model in suite.models]
    if not names or not suite.clusters:
        raise UsageError(f"{path} names no models or no clusters; give at least one of each")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{path} names {twice[0]!r} twice; give each model a name of its own")
    return suite
