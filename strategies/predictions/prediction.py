"""Each row predicted: the best of the layouts that it may be, estimated by the code that searches use.

seconds   of a step, `Ledger.step_seconds`
bytes     of the fullest device, by `Ledger.memory`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from placer.cluster.cluster import Cluster
from placer.costs.step_estimate import estimate_with
from placer.errors import PlacerError
from placer.graph import Graph
from placer.io.model_shape import Shape
from placer.plans.ledger import Ledger
from placer.plans.plan import ModelRef
from placer.search.problem import Problem
from placer.strategies.baselines.megatron import MegatronLayouts
from placer.strategies.predictions.counted import counted
from placer.strategies.predictions.layouts import Layouts, layouts_of
from placer.strategies.predictions.machines import cluster_of
from placer.strategies.predictions.rows import Row
from placer.strategies.predictions.settings import notes_of, settings_of
from placer.strategies.predictions.shapes import shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is predicted of a row. fits: by our account of memory. work: FLOPs of the model over the devices' peak, in
    seconds, which a constant share of the peak would scale; six_n: the same of 6 FLOPs a parameter and token (0 of
    images). low, high: the interval that holds 80% of runs alike; bytes_low, bytes_high: that of bytes. held: of the
    fullest device with its context, of `room`. group: what rows share that solve one problem."""

    row: Row
    seconds: float
    bytes: float
    fits: bool
    work: float
    six_n: float
    group: tuple[object, ...]
    ledger: Ledger
    held: float = 0.0
    room: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bytes_low: float = 0.0
    bytes_high: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Signed relative error of the seconds; None where none were measured."""
        return self.seconds / self.row.seconds - 1 if self.row.seconds else None

    @property
    def beyond(self) -> bool:
        """Whether it would be said alike to fit, or not to, at the other end of the interval of its bytes."""
        end = self.bytes_high if self.fits else self.bytes_low
        held = self.held * (end / self.bytes if self.bytes and end else 1.0)
        return (held <= self.room) == self.fits

    @property
    def bytes_error(self) -> float | None:
        """Signed relative error of the bytes; None where none were measured."""
        return self.bytes / self.row.bytes - 1 if self.row.bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A row without a prediction, and why."""

    row: Row
    reason: str


class GraphOf(Protocol):
    """Makes the captured model of printed sizes, in bfloat16 or, where not `half`, in float32."""

    def __call__(self, shape: Shape, *, half: bool) -> Graph:
        """The model of `shape`."""
        ...


def predictions(
    rows: Iterable[Row], graph_of: GraphOf, machines: Callable[[str], Cluster] | None = None
) -> Iterator[Prediction | Missing]:
    """Every row in order, predicted or not; `machines` makes a cluster of its spec (None: the catalogue's)."""
    machines = machines or cache(Cluster.load)
    made: dict[tuple[object, ...], MegatronLayouts] = {}
    for row in rows:
        try:
            yield _predicted(row, made, graph_of, machines)
        except PlacerError as wrong:
            yield Missing(row=row, reason=str(wrong))


def _predicted(
    row: Row, made: dict[tuple[object, ...], MegatronLayouts], graph_of: GraphOf, machines: Callable[[str], Cluster]
) -> Prediction | Missing:
    shape, spec = shape_of(row), cluster_of(row)
    if isinstance(shape, str):
        return Missing(row=row, reason=shape)
    if spec is None:
        return Missing(row=row, reason=f"machines not in the catalogue: {row.text('gpu') or 'no chip printed'}")
    found = layouts_of(row, shape.layers)
    if isinstance(found, str):
        return Missing(row=row, reason=found)
    settings = settings_of(row)
    key = (shape, spec, found.rows, settings)
    if key not in made:
        made[key] = MegatronLayouts(
            Problem(
                graph=graph_of(shape, half=settings.precision in ("bfloat16", "float16")), cluster=machines(spec),
                settings=settings, rows=found.rows, model=ModelRef(kind="config", reference="", fingerprint=""),
            )
        )  # fmt: skip
    return _best(row, made[key], found, (*key[:3], row.dataset))


def _best(row: Row, made: MegatronLayouts, found: Layouts, group: tuple[object, ...]) -> Prediction:
    """The fastest of the layouts that fit; where none does, the one that holds least."""
    ledgers = [estimate_with(made.costs, made.plan(layout)) for layout in found.degrees]
    room = made.problem.cluster.devices[0].memory_bytes
    held = [max(each.total for each in ledger.memory) for ledger in ledgers]
    fitting = [i for i, size in enumerate(held) if size <= room]
    best = (
        min(fitting, key=lambda i: ledgers[i].step_seconds) if fitting else min(range(len(held)), key=held.__getitem__)
    )
    ledger = ledgers[best]
    return Prediction(
        row=row, seconds=ledger.step_seconds, bytes=counted(row)(ledger), fits=bool(fitting),
        work=ledger.flops / ledger.peak_flops, six_n=_six_n(made.problem, ledger), group=group, ledger=ledger,
        held=held[best], room=room, notes=(*found.notes, *notes_of(row)),
    )  # fmt: skip


def _six_n(problem: Problem, ledger: Ledger) -> float:
    """Seconds at the peak of 6 FLOPs a parameter and token."""
    tokens = next((i.tensor.shape[1].fixed for i in problem.graph.inputs if len(i.tensor.shape) == 2), 0)
    elements = sum(parameter.elements for parameter in problem.graph.parameters.values())
    return 6 * elements * tokens * problem.rows / ledger.peak_flops
