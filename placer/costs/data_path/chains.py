"""All resources between a data set and the devices of a cluster: shared ones, and a branch for alike nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from placer.cluster.cluster import Cluster
from placer.costs.data_path.caching import home, place
from placer.costs.data_path.data_set import DataSet
from placer.costs.data_path.demand import NodeDemand
from placer.costs.data_path.resources import Branch, Resource, branch, shared_chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The shared resources in order, and those of each kind of node."""

    shared: tuple[Resource, ...]
    branches: tuple[Branch, ...]

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Every resource on the way."""
        return (*self.shared, *(resource for one in self.branches for resource in one.chain))

    def relieved(self, binding: tuple[Resource, ...]) -> Chains:
        """The same with as many units of each of `binding` as are needed."""

        def enough(chain: tuple[Resource, ...]) -> tuple[Resource, ...]:
            return tuple(one.relieved() if one in binding else one for one in chain)

        branches = tuple(replace(one, chain=enough(one.chain)) for one in self.branches)
        return Chains(shared=enough(self.shared), branches=branches)


def chains_of(
    data_set: DataSet, cluster: Cluster, demands: tuple[NodeDemand, ...], *, first_epoch: bool = False
) -> Chains:
    """The way of `data_set` to what `demands`; in its first epoch nothing is cached yet.

    Raises UsageError where the set lies on a storage that the cluster does not have.
    """
    where = home(data_set, cluster)
    branches = tuple(
        branch(data_set, one, where, "anew" if first_epoch else place(data_set, one, where), cluster.storage)
        for one in demands
    )
    shared = () if cluster.storage is None else shared_chain(data_set, cluster.storage, branches)
    return Chains(shared=shared, branches=branches)
