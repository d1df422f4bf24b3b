"""One lane takes as long as all of them: an exchange that is played for one device of each replica is the whole one."""

from __future__ import annotations

import random

import pytest

from placer.cluster.cluster import Cluster
from placer.costs.communication.network import Network
from placer.costs.timing.lanes import lane_of, lane_parcels
from placer.graph import Affine, Tensor
from placer.rules.layouts import SAME
from placer.spmd.cross_mesh import Bundle, Crossing, Exchange, Mesh, parcels
from problems import device, nodes

VALUES = (
    Tensor(shape=(Affine(0, 1), Affine(96)), dtype="float32", requires_grad=True),
    Tensor(shape=(Affine(7),), dtype="float32"),
)


def size(bundle: Bundle, rows: int) -> int:
    return sum(tensor.bytes_at(rows) for tensor in bundle.tensors)


def drawn(rng: random.Random, machines: Cluster, degree: int) -> Mesh:
    """Some groups of devices of one node each, in any order, with shares or without."""
    groups = [tuple(range(at, at + degree)) for at in range(0, machines.size, degree)]
    chosen = rng.sample(groups, rng.randint(1, len(groups)))
    shares = tuple(rng.randint(1, 4) for _ in chosen) if rng.random() < 0.5 else ()
    return Mesh(devices=tuple(one for group in chosen for one in group), shares=shares, degree=degree)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_lane_takes_as_long_as_all_parcels(degree: int) -> None:
    machines = nodes(device(), per_node=4, count=5)
    network, rng = Network(machines), random.Random(degree)
    for _ in range(200):
        source, target, rows = drawn(rng, machines, degree), drawn(rng, machines, degree), rng.randint(1, 60)
        crossings = [Crossing(f"b{number}.0", value, SAME, SAME) for number, value in enumerate(VALUES)]
        exchange = Exchange.between(rng.sample(crossings, rng.randint(1, 2)), source, target)
        lane, gradient = lane_of(exchange), rng.random() < 0.5
        assert lane is not None
        whole = [
            (one.source, one.target, size(one.bundle, one.rows))
            for one in parcels(exchange, source, target, rows, gradient=gradient)
        ]
        one = lane_parcels(lane, source, target, rows, size, gradient=gradient)
        ends = [network.nodes_of_replicas(mesh.devices, degree) for mesh in (source, target)]
        assert network.lane_exchange(one, ends[0], ends[1], lanes=degree) == network.exchange(whole)
        assert len(one) * degree == len(whole)


def test_replicas_on_several_nodes_have_no_lanes_by_node() -> None:
    network = Network(nodes(device(), per_node=4, count=2))
    assert network.nodes_of_replicas((0, 1, 4, 5), 2) == (0, 1)
    assert network.nodes_of_replicas((2, 3, 4, 5), 4) == ()
    assert network.nodes_of_replicas((0, 1, 1, 2), 2) == ()
