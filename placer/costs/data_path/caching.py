"""Where samples lie from the second epoch on: as near to the device as the whole set fits.

    device        as it is sent, in the memory that the plan leaves free: only where nothing is augmented, as cores do
                  not touch it again; placer's own loaders do not keep it there, a loop of one's own may
    host memory   as it is stored, in the page cache: cores decode it in every epoch
    local disk    as it is stored, on the node's own disks, where their capacity is known
    anew          nowhere nearer than it lay at first

Each node holds the whole set, since every epoch is shuffled over all ranks.
"""

from __future__ import annotations

from typing import Literal

from placer.cluster.cluster import Cluster
from placer.costs.data_path.data_set import DataSet, Where
from placer.costs.data_path.demand import NodeDemand
from placer.errors import UsageError

Place = Literal["device", "host memory", "local disk", "anew"]


def home(data_set: DataSet, cluster: Cluster) -> Where:
    """Where the set lies. Raises UsageError where the file names a storage that the cluster does not have."""
    if data_set.where == "shared" and cluster.storage is None:
        raise UsageError(
            f"{data_set.name} lies on shared storage, which {cluster.name} does not have; describe it in the cluster "
            "file, as in storage: {use: hdd, disks: 60, nic: 40gbe}, or write where: local in the data set file"
        )
    return data_set.where or ("shared" if cluster.storage is not None else "local")


def place(data_set: DataSet, demand: NodeDemand, where: Where) -> Place:
    """Where a node of `demand` reads the set that lies at `where`, from the second epoch on."""
    apart = all(device.backend != "cpu" for device, _ in demand.node.devices)
    if apart and not data_set.augment_seconds and data_set.samples * data_set.sent_bytes <= demand.spare_bytes:
        return "device"
    if data_set.total_bytes <= demand.node.memory_bytes:
        return "host memory"
    own = demand.node.storage
    if where == "shared" and own is not None and data_set.total_bytes <= own.disks * own.capacity_bytes:
        return "local disk"
    return "anew"
