"""The rule that all ranks agree on their communication, asked of as few ranks and microbatches as show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placer.plans.order import plan_actions
from placer.plans.plan import Plan
from placer.plans.schedule import BRANCHED, LOOPING, violations
from placer.plans.transfers import stage_graph
from placer.program.agreement import agreement
from placer.program.lowering import like_devices, lower, rows_of_replica
from placer.program.ranks import ConnectedReplicas, connected_replicas

# Microbatches per position, and one per stage, after which a schedule repeats itself: those that fill the pipeline,
# those that drain it, and as many between them.
FULL_TURNS = 2


def disagreements(plan: Plan) -> Iterator[str]:
    """The schedule runs to its end, and all ranks agree on their communication."""
    plan = _shortened(plan)
    broken = violations(plan_actions(plan), stage_graph(plan), len(plan.microbatches))
    if broken:
        yield from broken
        return
    # Of devices that do the same in step, a collective among them is reached by all when one reaches it.
    leaders = [devices[0] for devices in like_devices(plan)]
    yield from agreement(lower(plan, columns=_telling(plan), inners=leaders), partial=True)


def _telling(plan: Plan) -> tuple[ConnectedReplicas, ...]:
    """Columns that stand for all others in what they communicate.

    Where each is one replica of every position they differ in the number of their rows only: one that has rows of every
    microbatch stands for all. Of others, one of each kind: by how many rows of which microbatch its replicas have.
    """
    found = connected_replicas(plan)
    if all(len(own) == 1 for own in found[0]):
        shares = plan.stages[0].shares or (1,)
        return (found[shares.index(max(shares))],)
    kinds: dict[object, ConnectedReplicas] = {}
    for column in found:
        rows = tuple(rows_of_replica(plan, at, replica) for at, own in enumerate(column) for replica in own)
        kinds.setdefault((tuple(map(len, column)), rows), column)
    return tuple(kinds.values())


def _shortened(plan: Plan) -> Plan:
    """The plan with as many of its equal microbatches as show every turn of its schedule.

    Once the pipeline is full a schedule repeats the same turn for each further microbatch (interleaved: for each
    further round of as many as there are positions), so that ranks which agree over some turns agree over all. Nothing
    is known of turns of `branched`.
    tests/plans/test_legality.py holds the schedules to it.
    """
    count, positions = len(plan.microbatches), plan.positions
    enough = len(plan.stages) + FULL_TURNS * positions
    if plan.schedule in BRANCHED or (plan.schedule in LOOPING and count % positions):
        return plan
    if count <= enough or len(set(plan.microbatches[:-1])) > 1:
        return plan
    return replace(plan, microbatches=plan.microbatches[count - enough :])
