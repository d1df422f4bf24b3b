"""export_plan(plan, name) -> Exported: a plan written for a framework, or refused with all it has no words for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from placer.errors import PlacerError, UsageError
from placer.plans.plan import Plan
from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout, hybrid_layout
from placer.targets.frameworks.left_open import left_open

FRAMEWORKS = ("torchtitan", "megatron", "bridge", "automodel", "deepspeed", "accelerate", "transformers")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_HARMLESS = re.compile(r"[^\w .,:;()/%+=*-]")


class Framework(Protocol):
    """A module of this folder: what its framework has words for, what of a layout it lacks, and the file."""

    ABILITIES: Abilities

    def lacks(self, layout: HybridLayout) -> Iterator[str]:
        """Reasons, each naming what the plan has."""
        ...

    def text(self, layout: HybridLayout, base: str, notes: tuple[str, ...]) -> str:
        """The file; notes are lines of comment where its format has any."""
        ...


class InexpressibleError(PlacerError):
    """A framework has no words for a plan; `reasons` are all of them."""

    def __init__(self, name: str, reasons: tuple[str, ...]):
        what = "; ".join(reasons)
        super().__init__(
            f"{name} cannot be told this plan: {what}. `--nearest` exports the best plan found that it can be told, "
            f"`placer plan --for {name}` searches for it"
        )
        self.reasons = reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text of a file for a framework, and what it leaves to the framework."""

    text: str
    notes: tuple[str, ...]


def framework(name: str) -> Framework:
    """The module of a framework. Raises UsageError for an unknown one."""
    if name not in FRAMEWORKS:
        raise UsageError(f"there is no framework {name!r} to export to; known: {', '.join(FRAMEWORKS)}")
    module: Framework = importlib.import_module(f"placer.targets.frameworks.{name}")
    return module


def inexpressible(plan: Plan, name: str) -> tuple[str, ...]:
    """What of a plan the framework has no words for; empty where it can be exported."""
    layout, reasons = hybrid_layout(plan)
    return (*reasons, *framework(name).lacks(layout))


def export_plan(plan: Plan, name: str, base: str = "") -> Exported:
    """The plan for a framework. base: for torchtitan its configuration of the model, `package.module:function`.

    Raises InexpressibleError with every reason, UsageError where the base is missing or none.
    """
    reasons = inexpressible(plan, name)
    if reasons:
        raise InexpressibleError(name, reasons)
    layout, _ = hybrid_layout(plan)
    notes = tuple(_notes(plan, layout, name))
    return Exported(text=framework(name).text(layout, _base(plan, layout, name, base), notes), notes=notes)


def _base(plan: Plan, layout: HybridLayout, name: str, base: str) -> str:
    """What the file is based on. Raises UsageError where torchtitan needs one and none is known."""
    if name != "torchtitan":
        if base:
            raise UsageError(f"--base is for torchtitan, and the plan is exported to {name}; leave it out")
        return ""
    from placer.targets.frameworks import torchtitan  # the module of that name in this folder

    found = base or torchtitan.base_of(layout, _width(plan))
    if not found:
        raise UsageError(
            f"no configuration that torchtitan ships is known to be {plan.graph.name}; name the one to start from, as "
            f"in --base {torchtitan.LLAMA}:llama3_8b"
        )
    if not _REFERENCE.fullmatch(found):
        raise UsageError(f"--base {found!r} is no function; write package.module:function")
    return found


def _width(plan: Plan) -> int:
    """The width of a layer: the last dim of what enters the blocks behind the first."""
    for block in plan.graph.blocks[1:]:
        shapes = [plan.graph.value(one).shape for one in block.inputs if one.startswith("b")]
        if shapes and shapes[0]:
            return int(shapes[0][-1].fixed)
    return 0


def _notes(plan: Plan, layout: HybridLayout, name: str) -> Iterator[str]:
    """What a reader of the file should know, each a line of harmless characters."""
    seconds = f", predicted {plan.ledger.step_seconds:.4g} s a step" if plan.ledger else ""
    yield _harmless(f"placer: {plan.graph.name} on {layout.world} devices of {plan.cluster.name}{seconds}")
    yield _harmless(
        f"pipeline {layout.pipeline}, data {layout.data_ranks}, tensor {layout.tensor}, context {layout.context}, "
        f"expert {layout.expert}, {layout.microbatches} microbatches of {layout.micro_rows} rows"
    )
    if layout.devices != tuple(range(layout.world)):
        yield _harmless(f"ranks 0, 1, ... are the devices {', '.join(map(str, layout.devices))} of the cluster")
    if max(layout.tensor, layout.context, layout.expert) > 1:
        yield _harmless(f"ops within a layer are cut as {name} cuts them, which may not be op by op what placer priced")
    yield from left_open(name, layout, _has_vectors(plan))


def _has_vectors(plan: Plan) -> bool:
    """Whether parameters have fewer than two dims, as biases and the weights of norms have."""
    return any(len(one.shape) < 2 and not one.buffer for one in plan.graph.parameters.values())


def _harmless(text: str) -> str:
    return _HARMLESS.sub("?", text)
