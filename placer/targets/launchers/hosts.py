"""Which nodes run a plan, in the order of its ranks, as every launcher needs them.

Rank r of a plan is the device `plan.ranks[r]`; torchrun numbers its ranks node by node, in the order of node ranks. So
the ranks of a node must follow each other, and the launcher must keep the order of nodes: static rendezvous does, c10d
sorts by host name (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from placer.errors import UsageError
from placer.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """`count` nodes of one class that follow each other, from node rank `first` on, each with `ranks` ranks.

    kind: the name of their device. accelerators: whether these are no CPUs.
    """

    kind: str
    node: str
    first: int
    count: int
    ranks: int
    accelerators: bool


def host_groups(plan: Plan) -> tuple[HostGroup, ...]:
    """The nodes that run `plan`, in the order of their ranks. Raises UsageError where no launcher can keep it."""
    cluster = plan.cluster
    runs = [(node, len(list(run))) for node, run in groupby(cluster.node_of[device] for device in plan.ranks)]
    torn = next((node for node, _ in runs if sum(one == node for one, _ in runs) > 1), None)
    if torn is not None:
        raise UsageError(
            f"the ranks on node {torn} of {cluster.name} do not follow each other, and torchrun numbers ranks node by "
            "node; plan again with the devices of a node side by side, as in a cluster file that lists them so"
        )
    first, found = 0, list[HostGroup]()
    kinds = [(cluster.devices[_first_on(plan, node)], cluster.nodes[node].name, ranks) for node, ranks in runs]
    for (device, name, ranks), same in groupby(kinds):
        count = len(list(same))
        found.append(
            HostGroup(kind=device.name, node=name, first=first, count=count, ranks=ranks,
                      accelerators=device.backend != "cpu")
        )  # fmt: skip
        first += count
    return tuple(found)


def _first_on(plan: Plan, node: int) -> int:
    """The first device of the plan on a node."""
    return next(device for device in plan.ranks if plan.cluster.node_of[device] == node)
