"""Published training runs as placer's problems: the rows of vTrain's, Megatron's and Megatron-Bridge's tables.

In: the table `training_runs.csv` (one row per measured run). Out: `Run`s, each with its model's shape, its machines,
its settings and the layout as printed (`placer.strategies.predictions` reads them), and in words what the row uses that
is estimated otherwise (`notes`) or not at all (`unmodelled`). A row is never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from placer.io.model_shape import Shape
from placer.plans.settings import RunSettings
from placer.strategies.baselines.megatron import MegatronDegrees
from placer.strategies.predictions.layouts import layouts_of
from placer.strategies.predictions.machines import cluster_of
from placer.strategies.predictions.rows import Row, read_rows
from placer.strategies.predictions.settings import notes_of, settings_of
from placer.strategies.predictions.shapes import PADDING, shape_of

FAMILIES = {
    "vtrain": ("vtrain_single_node_a100", "vtrain_multi_node_a100"),
    "megatron": ("megatron_papers_readme",),
    "bridge": ("nemo_megatron_bridge",),
}
NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row. `layouts`: the published one, or, where the table does not print all of it, those it may be.

    shape: of the model as it was run; `common`: that which all rows of its group are planned with, which differs from
    it in the padding of the vocabulary: of vTrain's groups that for the most devices of a node. seconds: measured
    seconds of a step; 0 where there are none.
    """

    row: str
    family: str
    model: str
    shape: Shape | None
    common: Shape | None
    cluster: str
    devices: int
    rows: int
    settings: RunSettings
    layouts: tuple[MegatronDegrees, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()

    @property
    def group(self) -> tuple[object, ...]:
        """What runs share that solve the same problem."""
        return (self.family, self.common, self.cluster, self.rows, self.settings)


def published_runs(table: Path, family: str) -> tuple[Run, ...]:
    """Every row of a family's datasets, in the order of the table."""
    return tuple(_run(row, family) for row in read_rows(table) if row.dataset in FAMILIES[family])


def _run(row: Row, family: str) -> Run:
    shape, spec = shape_of(row), cluster_of(row)
    found = layouts_of(row, shape.layers) if isinstance(shape, Shape) else ""
    reasons = [text for text in (shape, found) if isinstance(text, str) and text]
    if spec is None:
        reasons.append("machines not in the catalogue")
    known = not reasons and isinstance(shape, Shape) and not isinstance(found, str)
    made = shape if isinstance(shape, Shape) else None
    common = made
    if family == "vtrain" and made is not None:
        step = PADDING * min(NODE, row.devices)
        common = replace(made, vocabulary=-(-row.count("vocab") // step) * step)
    return Run(
        row=row.name, family=family, model=row.text("model"), cluster=spec or row.text("gpu"), devices=row.devices,
        shape=made, common=common, rows=row.count("global_batch"), settings=settings_of(row),
        layouts=found.degrees if known and not isinstance(found, str) else (), seconds=row.seconds,
        notes=(*(found.notes if known and not isinstance(found, str) else ()), *notes_of(row)),
        unmodelled=tuple(reasons),
    )  # fmt: skip
