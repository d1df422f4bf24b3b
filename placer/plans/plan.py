"""Plan: every choice of one training step's layout, with what is needed to estimate, check and run it. plan.json.

Rows of the global batch are cut into microbatches (`microbatches`: rows of each, in order); the rows of a microbatch
are divided among the replicas of a stage (`replica_rows`). Stages are runs of consecutive blocks in graph order; stage
s runs on `stages[s].devices`: replicas of `degree` devices each. With `interleaved` several stages share
the same devices: stage s sits at pipeline position s % positions. With `branched` stages are a graph: each waits for
those alone of which it reads, and any number of them may share devices, so that branches of the model compute at the
same time on different devices (horizontal placement). Stages on other devices may have other numbers of
replicas, other shares and other degrees: what crosses between them is split and gathered (`placer.spmd.cross_mesh`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from placer.cluster.cluster import Cluster
from placer.errors import StalePlanError, UsageError
from placer.graph import Graph
from placer.io.bounds import AmountAboveZero, Count, CountFromOne
from placer.io.files import parsed_json, read_text, write_text
from placer.io.model_config import require_sense
from placer.io.refusals import refused, short
from placer.plans.document import DIGEST, digest, unknown_fields, unsaid
from placer.plans.ledger import Ledger
from placer.plans.references import senseless
from placer.plans.settings import RunSettings

SCHEMA_VERSION = 2

# What DDP takes where nothing is said (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
BUCKET_BYTES = 25 * 2**20

# What `replica_rows` remembers: stages of a plan divide rows in few ways, and microbatches have two sizes.
REMEMBERED = 4096

# What torch.manual_seed takes.
SEEDS = range(-(2**63), 2**64)
Seed = Annotated[int, Field(ge=SEEDS.start, lt=SEEDS.stop)]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "branched"]
Sharding = Literal["none", "optimizer", "gradients", "parameters"]
# How replicas on several hosts sum gradients (`placer.costs.communication.reductions`); plan.json does not say `flat`.
Reduction = Literal["flat", "hierarchical", "server"]
# Whether blocks run again in backward: none, all of each, or all but its products (`placer.costs.kept_results`).
Recompute = bool | Literal["selective"]


class Partly(NamedTuple):
    """A recompute of the first so many blocks of a stage alone."""

    recompute: Recompute
    blocks: int


# What of a stage runs again.
Again = Recompute | Partly
# What FSDP2 does: parameters lie in shards. Under the others they are whole, and so are gradients.
BY_FSDP: frozenset[Sharding] = frozenset({"gradients", "parameters"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the ops of one block class lie over the devices of a replica.

    choices: of each op the name of one of its `placer.rules.op_choices`; inputs, outputs: how the values at the
    block's border lie, "whole" or "cut 1" (on dim 1). experts: those of each device, device after device, as many on
    each as its piece of them; empty: in their own order.
    inner: where the devices are along two axes, how many along the second, whose links are the fast ones; choices and
    borders then say both, "space 0 / space 1" and "cut 2 / cut 3".
    """

    choices: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    experts: tuple[Count, ...] = ()
    inner: CountFromOne = 1


#: Axes along which each device has rows of its own of those that its replica has.
ROWS_APART = ("rows", "expert")


def apart_along(axes: tuple[tuple[str, int], ...]) -> int:
    """Into how many equal parts the rows of a replica go that lies along `axes`: its devices along `ROWS_APART`."""
    return prod(count for axis, count in axes if axis in ROWS_APART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A replica of `degree` devices: `splits[k]` says how block class k lies over them (None: whole on each).

    axis: what the devices are along: `tensor`, `sequence`, `rows`, `expert`, or `height` or `width` of images. Along
    `rows` and `expert` each device has rows of its own of what its replica has, along `expert` also some of the
    experts. With an `inner_axis` they are a mesh of two axes, of `inner` devices along this one: neighbours in the
    replica's order.
    """

    axis: str = "tensor"
    degree: CountFromOne
    splits: tuple[Split | None, ...]
    inner_axis: str = ""
    inner: CountFromOne = 1

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Each axis and how many devices are along it, the outer one first."""
        both = ((self.axis, self.degree // self.inner), (self.inner_axis, self.inner))
        return both if self.inner_axis else both[:1]

    @property
    def shape(self) -> str:
        """Its axes in words: `height 2 x width 2`."""
        return " x ".join(f"{axis} {count}" for axis, count in self.axes)

    @property
    def apart(self) -> int:
        """Into how many equal parts the rows of a replica go."""
        return apart_along(self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Blocks `first` to `last` (exclusive) on `devices`; replica i takes its `shares[i]` of the rows.

    A replica is one device, or with a layout the next `degree` devices, over which the plan's `layouts[layout]` cuts
    the ops.
    sharding: `none` replicates the state and all-reduces gradients (DDP); `optimizer` does so too, but each replica
    has a part of the optimizer's state, updates its rows of the parameters and gets the others' (ZeRO 1); `gradients`
    shards gradients and optimizer state, `parameters` also the parameters (FSDP2 without and with resharding after
    forward).
    recompute: run each block's forward again in backward instead of keeping its activations; `selective` runs again
    what is large and cheap (scores, norms, activations, dropout), while products keep their results.
    recomputed: of its blocks the first so many recompute, the others keep all (None: all recompute).
    reduction: how its replicas sum whole gradients: `flat` as their library does, `hierarchical` within each node
    before and after it is done between nodes, `server` by one of them.
    """

    first: Count
    last: Count
    devices: tuple[Count, ...]
    shares: tuple[CountFromOne, ...] = ()
    sharding: Sharding = "none"
    recompute: Recompute = False
    recomputed: CountFromOne | None = None
    layout: Count | None = None
    degree: CountFromOne = 1
    reduction: Reduction = "flat"

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.devices) // self.degree

    @property
    def again(self) -> Again:
        """What of it runs again."""
        return self.recompute if self.recomputed is None else Partly(self.recompute, self.recomputed)

    @property
    def by_fsdp(self) -> bool:
        """Whether its parameters lie in shards."""
        return self.sharding in BY_FSDP

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first device of each replica."""
        return self.devices[:: self.degree]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """Where the model comes from: `kind` factory (`package.module:function`), config (its JSON text in `reference`), or
    module (built in the caller's process, cannot be rebuilt from the plan)."""

    kind: Literal["factory", "config", "module"]
    reference: str
    fingerprint: str
    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up: what it was, its estimate (None: not legal) and why it lost."""

    name: str
    step_seconds: AmountAboveZero | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the search was asked for besides the model, the cluster and the settings: what planning again repeats."""

    strategy: str = "auto"
    pins: tuple[str, ...] = ()
    budget: CountFromOne | None = None
    islands: CountFromOne | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All choices and all inputs of one plan. `ledger` is predicted; `bound` a proven lower bound of the estimate.

    bucket_bytes: gradients that are summed over replicas are fused into buckets, closed as soon as they hold so much.
    """

    model: ModelRef
    graph: Graph
    cluster: Cluster
    settings: RunSettings
    stages: tuple[Stage, ...]
    schedule: ScheduleName
    microbatches: tuple[CountFromOne, ...]
    layouts: tuple[Layout, ...] = ()
    bucket_bytes: CountFromOne = BUCKET_BYTES
    strategy: str = ""
    seed: Seed = 0
    ledger: Ledger | None = None
    bound: AmountAboveZero | None = None
    alternatives: tuple[Alternative, ...] = ()
    assumptions: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    asked: Asked = Asked()
    schema_version: int = field(default=SCHEMA_VERSION)

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise UsageError(f"bucket_bytes is {self.bucket_bytes}; give a positive number of bytes")

    @property
    def reduces_beside(self) -> bool:
        """Whether whole gradients are summed beside the last backward (by DDP), not after it: of one stage alone, whose
        devices have a library in common."""
        return len(self.stages) == 1 and self.settings.overlap and not self.cluster.unlike(self.stages[0].devices)

    @property
    def fuses(self) -> bool:
        """Whether any gradients are summed in buckets over replicas."""
        return any(stage.replicas > 1 and not stage.by_fsdp for stage in self.stages)

    @property
    def compresses(self) -> bool:
        """Whether any gradients are summed over replicas in 16 bits, which changes the mathematics."""
        return self.settings.gradient_compression != "none" and any(stage.replicas > 1 for stage in self.stages)

    @cached_property
    def positions(self) -> int:
        """Pipeline positions: distinct device sets."""
        return len({stage.devices for stage in self.stages})

    @property
    def rows(self) -> int:
        """Rows of the global batch."""
        return sum(self.microbatches)

    @property
    def world_size(self) -> int:
        """Ranks that run the plan; rank r is the r-th device in `ranks`."""
        return len(self.ranks)

    @cached_property
    def meshes(self) -> tuple[Stage, ...]:
        """The first stage of each position, whose devices, degree and shares those after it there have too."""
        first: dict[tuple[int, ...], Stage] = {}
        for stage in self.stages:
            first.setdefault(stage.devices, stage)
        return tuple(first.values())

    @cached_property
    def stages_at(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the stages of each position, in their order."""
        found: dict[tuple[int, ...], list[int]] = {}
        for number, stage in enumerate(self.stages):
            found.setdefault(stage.devices, []).append(number)
        return tuple(map(tuple, found.values()))

    @cached_property
    def first_ranks(self) -> tuple[int, ...]:
        """The first rank of each position."""
        return tuple(accumulate((len(mesh.devices) for mesh in self.meshes[:-1]), initial=0))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The device of each rank: position by position, replica by replica."""
        return tuple(dict.fromkeys(chain.from_iterable(dict.fromkeys(stage.devices for stage in self.stages))))

    @property
    def gap(self) -> float | None:
        """(estimate - bound) / bound, never negative; None where no bound is known."""
        if self.bound is None or self.ledger is None:
            return None
        return max(0.0, (self.ledger.step_seconds - self.bound) / self.bound)

    def save(self, path: str | Path) -> None:
        """Write plan.json atomically."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """The plan as JSON; the same plan gives the same bytes."""
        usual = {index: {"reduction"} for index, stage in enumerate(self.stages) if stage.reduction == "flat"}
        exclude = {"stages": usual} | unsaid(self.settings, self.cluster, self.graph)
        if self.asked.islands is None:
            exclude["asked"] = {"islands"}
        text = PLAN.dump_json(self, indent=1, exclude=exclude).decode()
        return f'{text.removesuffix("}").rstrip()},\n "{DIGEST}": "{digest(json.loads(text))}"\n}}'

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read plan.json. Raises UsageError for what is no plan, StalePlanError for another schema version."""
        return Plan.from_json(read_text(path, "the plan"), str(path))

    @staticmethod
    def from_json(text: str, path: str = "the plan") -> Plan:
        """The plan of `to_json`."""
        try:
            document = parsed_json(text, f"{path} is not a plan")
        except UsageError as error:
            raise UsageError(f"{error}; make one with `placer plan`") from None
        found = document.get("schema_version") if isinstance(document, dict) else None
        if found is None:
            raise UsageError(f"{path} is not a plan: it has no schema_version; make one with `placer plan`")
        if found != SCHEMA_VERSION:
            raise StalePlanError(
                f"{path} has schema version {short(found)}, this placer reads {SCHEMA_VERSION}; plan again with "
                "`placer plan`"
            )
        try:
            plan = PLAN.validate_json(text, strict=True)
        except ValidationError as error:
            raise UsageError(f"{path} is not a valid plan: {refused(error)}; plan again") from None
        except UsageError as error:  # what settings and clusters refuse by themselves
            raise UsageError(f"{path} is not a valid plan: {error}") from None
        unknown = next(unknown_fields(document, PLAN.dump_python(plan, mode="json"), ()), "")
        if unknown:
            raise UsageError(f"{path} is not a valid plan: {short(unknown)} is no field of a plan; remove it")
        if plan.model.kind == "config":
            config = parsed_json(plan.model.reference, f"{path} is not a valid plan: model.reference")
            require_sense(config, f"{path} is not a valid plan: model.reference")
        wrong = next(senseless(plan.graph, plan.layouts), "")
        if wrong:
            raise UsageError(f"{path} is not a valid plan: {wrong}; plan again")
        return plan

    def __str__(self) -> str:
        from placer.report.plan_table import plan_table  # the table reads plans

        return plan_table(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from placer.report.notebook import plan_html  # as above

        return plan_html(self)


@lru_cache(maxsize=REMEMBERED)
def replica_rows(rows: int, shares: tuple[int, ...], replicas: int) -> tuple[int, ...]:
    """Rows of each replica: proportional to `shares` (equal if empty), remainders to the largest, then the first."""
    weights = shares or (1,) * replicas
    total = sum(weights)
    base = [rows * weight // total for weight in weights]
    order = sorted(range(replicas), key=lambda i: (-(rows * weights[i] % total), i))
    for i in order[: rows - sum(base)]:
        base[i] += 1
    return tuple(base)


def recompute_word(recompute: Again) -> str:
    """`yes`, `no`, `selective`, and of the first blocks alone `yes, first 3`."""
    if isinstance(recompute, Partly):
        return f"{recompute_word(recompute.recompute)}, first {recompute.blocks}"
    return recompute if isinstance(recompute, str) else "yes" if recompute else "no"


def is_edited(text: str) -> bool:
    """Whether the plan.json `text` says something else than placer wrote: its digest is another, or missing."""
    document = json.loads(text)
    return not isinstance(document, dict) or document.pop(DIGEST, None) != digest(document)


PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of plan.json."""
    schema = PLAN.json_schema()
    schema["properties"][DIGEST] = {"type": "string", "title": "Digest of all other fields, as placer wrote them"}
    return schema
