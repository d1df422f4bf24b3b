"""What would help a data path that keeps devices waiting, each judged by the flow with it, the cheapest first.

    reading in sequence     shards instead of single samples: nothing to buy
    units of what binds     as many disks, network cards, workers (which cost nothing) and cores as the minimum cut is
                            short of; and as all the way is
    host memory             of so many bytes that the stored set stays there after the first epoch
    local disks             likewise, where the node has some whose capacity is known

Without prices of all parts of a list, those that take fewer parts come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from placer.cluster.cluster import Cluster
from placer.costs.data_path.chains import Chains, chains_of
from placer.costs.data_path.data_set import DataSet, Prices
from placer.costs.data_path.demand import NodeDemand
from placer.costs.data_path.network import Flow, sustained
from placer.costs.data_path.resources import ADDABLE, Resource

# By definition (IEC 80000-13).
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """what: in words; parts: how many things of hardware; dollars: of all, None where a price is not known; share: of
    the devices' demand that then passes."""

    what: str
    parts: int
    dollars: float | None
    share: Fraction


def additions(data_set: DataSet, cluster: Cluster, demands: tuple[NodeDemand, ...], flow: Flow) -> tuple[Addition, ...]:
    """What raises the share of `flow`, the cheapest first; nothing where devices never wait."""
    if not flow.binding:
        return ()
    found = [
        *_in_sequence(data_set, cluster, demands, flow),
        *_units(data_set, chains_of(data_set, cluster, demands), flow),
        *_memory(data_set, cluster, demands),
        *_local_disks(data_set, cluster, demands),
    ]
    better = [one for one in found if one.share > flow.share]
    priced = all(one.dollars is not None for one in better)
    return tuple(sorted(better, key=lambda one: ((one.dollars or 0.0) if priced else one.parts, -one.share, one.what)))


def _in_sequence(
    data_set: DataSet, cluster: Cluster, demands: tuple[NodeDemand, ...], flow: Flow
) -> Iterator[Addition]:
    if data_set.at_random and any(one.kind == "disks" for one in flow.binding):
        chains = chains_of(replace(data_set, at_random=False), cluster, demands)
        what = "shards that are read in sequence, instead of samples at random (placer data pack)"
        yield Addition(what=what, parts=0, dollars=0.0, share=_share(chains))


def _units(data_set: DataSet, chains: Chains, flow: Flow) -> Iterator[Addition]:
    short = tuple(one for one in chains.resources if one.missing)
    for added in dict.fromkeys((flow.binding, short)):
        if all(one.kind in ADDABLE for one in added):
            costs = [_price(one, data_set.prices) for one in added]
            yield Addition(
                what=" and ".join(_words(one) for one in added if one.missing),
                parts=sum(one.missing * one.nodes for one in added if one.kind != "workers"),
                dollars=None if None in costs else sum(cost for cost in costs if cost is not None),
                share=_share(chains.relieved(added)),
            )


def _memory(data_set: DataSet, cluster: Cluster, demands: tuple[NodeDemand, ...]) -> Iterator[Addition]:
    wanted = ceil(data_set.total_bytes)
    short = [one for one in demands if one.node.memory_bytes < wanted]
    grown = tuple(
        replace(one, node=replace(one.node, memory_bytes=max(wanted, one.node.memory_bytes))) for one in demands
    )
    if short:
        gib = sum(ceil((wanted - one.node.memory_bytes) / GIB) * one.count for one in short)
        price = data_set.prices.memory_per_gib
        yield Addition(
            what=f"{ceil(wanted / GIB)} GiB of host memory a node, which then holds the set after the first epoch",
            parts=sum(one.count for one in short),
            dollars=None if price is None else gib * price,
            share=_share(chains_of(data_set, cluster, grown)),
        )


def _local_disks(data_set: DataSet, cluster: Cluster, demands: tuple[NodeDemand, ...]) -> Iterator[Addition]:
    grown, parts = [], 0
    for one in demands:
        own = one.node.storage
        if own is None or not own.capacity_bytes:
            return
        disks = max(own.disks, ceil(data_set.total_bytes / own.capacity_bytes))
        parts += (disks - own.disks) * one.count
        grown.append(replace(one, node=replace(one.node, storage=replace(own, disks=disks))))
    if parts:
        price = data_set.prices.disk
        yield Addition(
            what=f"{parts} more local disks, which then hold the set after the first epoch",
            parts=parts,
            dollars=None if price is None else parts * price,
            share=_share(chains_of(data_set, cluster, tuple(grown))),
        )


def _share(chains: Chains) -> Fraction:
    return sustained(chains.shared, chains.branches).share


def _words(one: Resource) -> str:
    """`3 more disks of shared storage`, `12 cores of their own in each of 4 nodes new`."""
    singular = one.kind.removesuffix("s") if one.missing == 1 else one.kind
    what = f"{one.missing} {singular} beside those that compute" if one.computes else f"{one.missing} more {singular}"
    return f"{what} in each of {one.nodes} nodes {one.where}" if one.nodes > 1 else f"{what} in {one.where}"


def _price(one: Resource, prices: Prices) -> float | None:
    of_kind = {"disks": prices.disk, "network cards": prices.network_card, "cores": prices.core, "workers": 0.0}
    each = of_kind[one.kind]
    return None if each is None else each * one.missing * one.nodes
