"""The rule that what a plan holds fits."""

from __future__ import annotations

from collections.abc import Iterator

from placer.costs.step_estimate import hosted, tightest
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Plan

GIB = 2**30


def over_full(plan: Plan) -> Iterator[str]:
    """What the estimate says a device holds at its fullest, and the host of its node, is no more than it has."""
    over: dict[str, list[int]] = {}
    for device, held in tightest(plan):
        available = plan.cluster.devices[device].memory_bytes
        if held.total > available:
            category, size = _largest(held)
            figures = (
                f"{held.total / GIB:.2f} GiB of {available / GIB:.2f} GiB, "
                f"{(held.total - available) / GIB:.2f} GiB too much, mostly {category} ({size / GIB:.2f} GiB)"
            )
            over.setdefault(figures, []).append(device)
    for figures, (first, *others) in over.items():
        yield f"memory on device {first}{f' and {len(others)} like it' if others else ''}: {figures}"
    for node, size in sorted(hosted(plan).items()):
        available = plan.cluster.nodes[node].memory_bytes
        if size > available > 0:
            yield (
                f"memory of the host of node {node}: {size / GIB:.2f} GiB of {available / GIB:.2f} GiB, all of it the "
                "optimizer's state of its devices"
            )


def _largest(held: MemoryBytes) -> tuple[str, int]:
    return max(held.categories.items(), key=lambda entry: entry[1])
