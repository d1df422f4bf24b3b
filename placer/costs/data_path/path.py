"""`data_path(data_set, cluster, demands)`: what the way of the data sustains, what binds, how much of what is needed.

With a share s of what devices ask for, a step of t seconds takes t / s: t / s - t of it is waiting for data. Loading
runs beside computing (prefetching), but on CPUs, whose cores do both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from placer.cluster.cluster import Cluster
from placer.costs.data_path.additions import Addition, additions
from placer.costs.data_path.chains import Chains, chains_of
from placer.costs.data_path.data_set import DataSet
from placer.costs.data_path.demand import NodeDemand, plan_demand
from placer.costs.data_path.network import Flow, sustained
from placer.costs.data_path.resources import unknown
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPath:
    """The way of a data set to devices from the second epoch on (`chains`, `flow`), and in the first (`first_flow`).

    wanted: samples a second that all devices together read while none waits. additions: what helps, the cheapest first.
    notes: what is not described and so does not bind.
    """

    data_set: DataSet
    wanted: Fraction
    chains: Chains
    flow: Flow
    first_flow: Flow
    additions: tuple[Addition, ...]
    notes: tuple[str, ...]

    @property
    def bottleneck(self) -> str:
        """The resources of the minimum cut: `devices` where they never wait."""
        return _names(self.flow)

    @property
    def first_bottleneck(self) -> str:
        """Likewise in the first epoch."""
        return _names(self.first_flow)

    @property
    def samples_per_second(self) -> float:
        """What devices get."""
        return float(self.wanted * self.flow.share)

    def with_waiting(self, ledger: Ledger) -> Ledger:
        """`ledger` with the seconds that its step waits for data."""
        waiting = ledger.step_seconds * float(1 / self.flow.share - 1)
        seconds = replace(ledger.seconds, data=ledger.seconds.data + waiting)
        return replace(ledger, seconds=seconds, step_seconds=ledger.step_seconds + waiting)


def data_path(data_set: DataSet, cluster: Cluster, demands: tuple[NodeDemand, ...]) -> DataPath:
    """The way of `data_set` to what `demands`. Raises UsageError where the cluster lacks the storage it lies on."""
    chains = chains_of(data_set, cluster, demands)
    first = chains_of(data_set, cluster, demands, first_epoch=True)
    flow = sustained(chains.shared, chains.branches)
    return DataPath(
        data_set=data_set,
        wanted=sum((one.rate * one.count for one in demands), Fraction()),
        chains=chains,
        flow=flow,
        first_flow=sustained(first.shared, first.branches),
        additions=additions(data_set, cluster, demands, flow),
        notes=tuple(dict.fromkeys(note for one in first.branches for note in unknown(data_set, one))),
    )


def fed(plan: Plan, data_set: DataSet) -> tuple[Plan, DataPath]:
    """The plan with the seconds that its step waits for `data_set` in its ledger, and the way of the data to it."""
    path = data_path(data_set, plan.cluster, plan_demand(plan))
    assert plan.ledger is not None
    share = float(path.flow.share)
    waits = "devices never wait" if share == 1 else f"{path.bottleneck} passes {share:.1%} of what devices ask for"
    told = f"data set {data_set.name}: {waits}; plans were searched without it"
    return replace(plan, ledger=path.with_waiting(plan.ledger), assumptions=(*plan.assumptions, told)), path


def _names(flow: Flow) -> str:
    return " and ".join(one.name for one in flow.binding) or "devices"
