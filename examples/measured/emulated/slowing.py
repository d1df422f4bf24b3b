"""slowed(trial, chosen): the plan chosen before and after one link, or one node, became slower; both measured there.

The link that carries most bytes of the chosen plan gets a tenth of its rate, the node that does most of its work a
quarter of its share of a core. In the right direction is a plan that sends fewer bytes there, or does less work there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from examples.measured.emulated.machines import Machines
from examples.measured.emulated.trial import Trial, Verdict, predicted
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.instructions import Collective, Message
from placer.program.lowering import lower, rows_of_replica

SLOWER_LINK, SLOWER_NODE = 10.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A plan on the slowed machines: predicted and measured seconds, and its part there: bytes or work."""

    plan: Plan
    predicted: float
    measured: float
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """What was slowed, and the plan chosen before and after; `verdict` is of the latter held to one device."""

    what: str
    machines: Machines
    before: Side
    after: Side
    same: bool
    verdict: Verdict

    @property
    def direction(self) -> str:
        """Whether the new plan relies less on what was slowed."""
        if self.same:
            return "unchanged"
        return "right" if self.after.part < self.before.part else "WRONG"


def slowed(trial: Trial, chosen: Plan, steps: int, rounds: int) -> Iterator[Slowed]:
    """Both ways of slowing the trial's machines under the plan that was chosen for them."""
    nodes = range(len(trial.machines.nodes))
    link = max(nodes, key=lambda node: link_bytes(chosen, node))
    busiest = max(nodes, key=lambda node: work_share(chosen, node))
    yield _slowed(
        trial, chosen, f"link of node {link} / {SLOWER_LINK:g}", trial.machines.with_slow_link(link, SLOWER_LINK),
        lambda plan: link_bytes(plan, link), (steps, rounds),
    )  # fmt: skip
    yield _slowed(
        trial, chosen, f"node {busiest} / {SLOWER_NODE:g}", trial.machines.with_slow_node(busiest, SLOWER_NODE),
        lambda plan: work_share(plan, busiest), (steps, rounds),
    )  # fmt: skip


def work_share(plan: Plan, node: int) -> float:
    """The part of a step's FLOPs that a node's devices do."""
    done = total = 0.0
    for stage, position in zip(plan.stages, position_of(plan), strict=True):
        flops = sum(
            op.forward_flops.per_row + op.backward_flops.per_row
            for block, op in plan.graph.ops
            if block in plan.graph.blocks[stage.first : stage.last]
        )
        for index, device in enumerate(stage.devices):
            rows = sum(rows_of_replica(plan, position, index // stage.degree))
            own = flops * rows / stage.degree
            total += own
            done += own * (plan.cluster.node_of[device] == node)
    return done / total


def link_bytes(plan: Plan, node: int) -> float:
    """Bytes through a node's link in a step, both ways, by the programs of its ranks.

    Searches put no replica on several nodes, so that what its devices say to each other stays inside.
    """
    node_of, found = plan.cluster.node_of, 0.0
    for program in lower(plan):
        if node_of[program.device] != node:
            continue
        for one in program.instructions:
            if isinstance(one, Message) and node_of[plan.ranks[one.peer]] != node:
                found += one.bytes
            elif isinstance(one, Collective) and any(node_of[plan.ranks[rank]] != node for rank in one.ranks):
                part = (len(one.ranks) - 1) / len(one.ranks) * one.bytes
                found += 2 * part * (2 if one.kind == "all_reduce" else 1)
    return found


def _slowed(
    trial: Trial, chosen: Plan, what: str, machines: Machines, part: Callable[[Plan], float], effort: tuple[int, int]
) -> Slowed:
    there = trial.on(machines)
    before, after = there.moved(chosen), there.chosen()
    same = _choices(before) == _choices(after)
    verdict = trial.verified(after)
    plans = (before,) if same else (before, after)
    seconds = there.seconds(plans, *effort)
    sides = [
        Side(plan=plan, predicted=predicted(plan).simulated, measured=measured, part=part(plan))
        for plan, measured in zip(plans, seconds, strict=True)
    ]
    return Slowed(what=what, machines=machines, before=sides[0], after=sides[-1], same=same, verdict=verdict)


def _choices(plan: Plan) -> tuple[object, ...]:
    return plan.stages, plan.schedule, plan.microbatches, plan.layouts, plan.bucket_bytes
