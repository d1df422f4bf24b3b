"""Layouts: the ways to lay a model out, each a pinned plan, some edited as a person may edit a plan.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from examples.parity.processes import processes
from examples.parity.splits import fast_links
from examples.parity.zoo.entry import Entry
from placer.api import plan as planned
from placer.api import replan
from placer.plans.plan import Plan
from placer.plans.settings import Precision

AXES = ("tensor", "height", "width", "sequence", "rows", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooLayout:
    """What a plan is asked for. microbatches: rows of each, written into the plan; empty: as the search has them.
    fresh: ranks capture the model themselves, as a user's do."""

    name: str
    ranks: int = 1
    pins: tuple[str, ...] = ()
    microbatches: tuple[int, ...] = ()
    precision: Precision = "float64"
    fresh: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is the plain loop's own: one device, one piece."""
        return self.ranks == 1 and not self.microbatches

    @property
    def cuts(self) -> bool:
        """Whether a replica is several devices."""
        return any(pin.startswith(AXES) for pin in self.pins)


ONE = ZooLayout(name="one device")
QUICK = (
    ONE,
    ZooLayout(name="microbatches 4+3+1", microbatches=(4, 3, 1)),
    ZooLayout(name="data=2", ranks=2, pins=("data=2", "pipeline=1", "microbatches=1", "shard=none")),
    ZooLayout(name="pipeline=2", ranks=2, pins=("pipeline=2", "data=1", "schedule=1f1b", "microbatches=4")),
    ZooLayout(name="shard=parameters", ranks=2, pins=("data=2", "pipeline=1", "microbatches=2", "shard=parameters")),
)
MORE = (
    ZooLayout(name="as searched", ranks=2),
    ZooLayout(name="fresh pipeline=2", ranks=2, pins=("pipeline=2", "data=1", "microbatches=2"), fresh=True),
    ZooLayout(name="pieces of one row", microbatches=(1,) * 8),
    ZooLayout(name="data=2, 4+4", ranks=2, pins=("data=2", "pipeline=1", "microbatches=2", "shard=none")),
    ZooLayout(name="data=2, 5+2+1", ranks=2, pins=("data=2", "pipeline=1", "shard=none"), microbatches=(5, 2, 1)),
    ZooLayout(name="data=4", ranks=4, pins=("data=4", "pipeline=1", "microbatches=1", "shard=none")),
    ZooLayout(name="shard=optimizer", ranks=2, pins=("data=2", "pipeline=1", "microbatches=2", "shard=optimizer")),
    ZooLayout(name="shard=gradients", ranks=2, pins=("data=2", "pipeline=1", "microbatches=2", "shard=gradients")),
    ZooLayout(name="pipeline=2 gpipe", ranks=2, pins=("pipeline=2", "data=1", "schedule=gpipe", "microbatches=4")),
    ZooLayout(name="pipeline=2, 4+3+1", ranks=2, pins=("pipeline=2", "data=1"), microbatches=(4, 3, 1)),
    ZooLayout(name="pipeline=2, 1 piece", ranks=2, pins=("pipeline=2", "data=1", "microbatches=1", "schedule=gpipe")),
    ZooLayout(name="zero-bubble", ranks=2, pins=("pipeline=2", "data=1", "schedule=zero-bubble", "microbatches=4")),
    ZooLayout(name="interleaved", ranks=2, pins=("pipeline=2", "data=1", "schedule=interleaved", "microbatches=4")),
    ZooLayout(name="data=2 pipeline=2", ranks=4, pins=("pipeline=2", "data=2", "schedule=1f1b", "microbatches=2")),
    ZooLayout(name="recompute", pins=("recompute=yes",), microbatches=(4, 4)),
    ZooLayout(name="recompute, data=2", ranks=2, pins=("data=2", "pipeline=1", "recompute=yes", "microbatches=2")),
    ZooLayout(name="selective recompute", pins=("recompute=selective",), microbatches=(4, 4)),
    ZooLayout(
        name="selective recompute, pipeline=2",
        ranks=2,
        pins=("pipeline=2", "data=1", "schedule=1f1b", "recompute=selective", "microbatches=2"),
    ),
    ZooLayout(name="tensor=2", ranks=2, pins=("tensor=2", "data=1", "pipeline=1")),
    ZooLayout(name="tensor=2 data=2", ranks=4, pins=("tensor=2", "data=2", "pipeline=1", "shard=none")),
    ZooLayout(name="rows=2", ranks=2, pins=("rows=2", "data=1", "pipeline=1")),
    ZooLayout(name="rows=2 tensor=2", ranks=4, pins=("rows=2", "tensor=2", "data=1", "pipeline=1")),
    ZooLayout(name="float32", microbatches=(4, 4), precision="float32"),
    ZooLayout(name="float32 data=2", ranks=2, pins=("data=2", "pipeline=1", "shard=none"), precision="float32"),
    ZooLayout(name="bfloat16 data=2", ranks=2, pins=("data=2", "pipeline=1", "shard=none"), precision="bfloat16"),
    ZooLayout(
        name="autocast data=2", ranks=2, pins=("data=2", "pipeline=1", "shard=none"), precision="bfloat16-autocast"
    ),
)


def layouts(one: Entry, which: str) -> Iterator[ZooLayout]:
    """The layouts of an entry, `quick` or `all`."""
    yield from QUICK
    if which == "all":
        yield from MORE
        for axis in one.axes:
            yield ZooLayout(name=f"{axis}=2", ranks=2, pins=(f"{axis}=2", "data=1", "pipeline=1"))


def first_plan(one: Entry, precision: Precision) -> Plan:
    """The plan for one device; the model is captured here, once for all layouts of a precision."""
    batch = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in one.made(0).items()}
    return planned(
        one.reference, _processes(1), batch=batch, loss_fn=one.loss, settings=replace(one.settings, precision=precision)
    )


def laid_out(first: Plan, layout: ZooLayout) -> Plan:
    """The plan of the same model under `layout`, whose precision it has. Raises PlacerError where placer has none."""
    cluster = fast_links(layout.ranks) if layout.cuts else _processes(layout.ranks)
    found = replan(first, cluster, pins=layout.pins)
    return replace(found, microbatches=layout.microbatches) if layout.microbatches else found


_processes = cache(processes)
