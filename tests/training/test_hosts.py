"""Hosts that come in another order than the plan's nodes: put in order, or refused before anything is trained."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

import placer
from graphs import BlockSpec, chain_graph
from placer.cluster.cluster import Cluster, Device, Link, Node
from placer.errors import UsageError
from placer.plans.plan import ModelRef, Plan, Stage
from placer.plans.settings import RunSettings
from placer.runtime.distributed.hosts import RankPlace, ranks_in_order, same_chip
from problems import device

pytestmark = pytest.mark.in_turns

H100 = replace(device(name="H100 80GB SXM5"), backend="cuda")
A100 = replace(device(name="A100 80GB SXM4"), backend="cuda")
CPU = replace(device(name="core"), backend="cpu")
NAMES = {"H100 80GB SXM5": "NVIDIA H100 80GB HBM3", "A100 80GB SXM4": "NVIDIA A100-SXM4-80GB"}


def plan_on(*nodes: tuple[str, Device, int], order: tuple[int, ...] = ()) -> Plan:
    """A stage for each device, in this order."""
    link = Link(name="in", latency_seconds=1e-6, bandwidth=1e10)
    groups = tuple((Node(name=name, devices=((chip, count),), link=link, nic=link), 1) for name, chip, count in nodes)
    made = Cluster(name="made", groups=groups)
    devices = order or tuple(range(made.size))
    return Plan(
        model=ModelRef(kind="factory", reference="models:build", fingerprint="0"),
        graph=chain_graph([BlockSpec()] * len(devices)), cluster=made, settings=RunSettings(),
        stages=tuple(Stage(first=i, last=i + 1, devices=(one,)) for i, one in enumerate(devices)),
        schedule="1f1b", microbatches=(1, 1),
    )  # fmt: skip


def started(*hosts: tuple[int, str], gpus: str = "") -> list[RankPlace]:
    """Ranks host after host: so many on each, which says to be that node; GPUs by `gpus`, or by the node's name."""
    places: list[RankPlace] = []
    for group, (count, node) in enumerate(hosts):
        for _ in range(count):
            places.append(RankPlace(rank=len(places), group=group, host=f"h{group}", node=node, gpus=(gpus,) * 8))
    return places


def on_gpus(*hosts: tuple[int, str]) -> list[RankPlace]:
    places = started(*((count, "") for count, _ in hosts))
    return [replace(place, gpus=(NAMES[hosts[place.group][1]],) * hosts[place.group][0]) for place in places]


def test_hosts_in_the_plans_order_stay() -> None:
    plan = plan_on(("big", H100, 4), ("small", A100, 2))
    assert ranks_in_order(plan, on_gpus((4, H100.name), (2, A100.name))) == (0, 1, 2, 3, 4, 5)


def test_swapped_hosts_change_places_by_their_gpus() -> None:
    plan = plan_on(("one", H100, 2), ("other", A100, 2))
    assert ranks_in_order(plan, on_gpus((2, A100.name), (2, H100.name))) == (2, 3, 0, 1)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_each_order_of_unlike_hosts_is_put_right(order: tuple[int, ...]) -> None:
    nodes = [("a", H100, 1), ("b", A100, 2), ("c", H100, 3)]
    plan = plan_on(*nodes)
    found = ranks_in_order(plan, on_gpus(*((nodes[at][2], nodes[at][1].name) for at in order)))
    starts = {0: (0,), 1: (1, 2), 2: (3, 4, 5)}
    assert found == tuple(rank for at in order for rank in starts[at])


def test_ranks_that_go_over_nodes_in_turn_are_put_where_their_devices_are() -> None:
    plan = plan_on(("a", H100, 2), ("b", H100, 2), order=(0, 2, 1, 3))
    assert ranks_in_order(plan, on_gpus((2, H100.name), (2, H100.name))) == (0, 2, 1, 3)


def test_hosts_say_by_name_what_they_are() -> None:
    plan = plan_on(("fast", CPU, 1), ("slow", CPU, 1))
    assert ranks_in_order(plan, started((1, "slow"), (1, "fast"))) == (1, 0)
    with pytest.raises(UsageError, match="says to be quick"):
        ranks_in_order(plan, started((1, "quick"), (1, "slow")))


def test_other_hosts_are_refused_with_what_was_wanted_and_found() -> None:
    plan = plan_on(("big", H100, 4), ("small", A100, 2))
    with pytest.raises(UsageError) as error:
        ranks_in_order(plan, on_gpus((4, A100.name), (2, A100.name)))
    for told in ("4 ranks on a node big (H100 80GB SXM5)", "4 ranks on host h0 (NVIDIA A100-SXM4-80GB)", "PLACER_NODE"):
        assert told in str(error.value)
    with pytest.raises(UsageError, match="other hosts"):
        ranks_in_order(plan, on_gpus((3, H100.name), (3, A100.name)))


def test_processors_that_say_nothing_may_stand_for_parts_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_on(("host", CPU, 2))
    assert ranks_in_order(plan, started((1, ""), (1, ""))) == (0, 1)
    assert "messages take other seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("planned", "found", "same"),
    [
        ("H100 80GB SXM5", "NVIDIA H100 80GB HBM3", True),
        ("A100 80GB SXM4", "NVIDIA A100-SXM4-80GB", True),
        ("A100 80GB SXM4", "NVIDIA A100-SXM4-40GB", False),
        ("H100 80GB SXM5", "NVIDIA A100-SXM4-80GB", False),
        ("RTX 4090 PCIE", "NVIDIA GeForce RTX 4090", True),
        ("RTX 4090 PCIE", "NVIDIA GeForce RTX 3090", False),
        ("V100 SXM2 16GB", "Tesla V100-SXM2-16GB", True),
        ("MI300X", "AMD Instinct MI300X", True),
        ("my card", "NVIDIA H200", True),
    ],
)
def test_names_of_chips(planned: str, found: str, same: bool) -> None:
    assert same_chip(replace(H100, name=planned), found) == same


CLUSTER = """\
name: unlike
devices:
  quick: {backend: cpu, memory: 4 GiB, memory_bandwidth: 10 GB/s, rates: {float32: 80 GFLOP/s, float64: 40 GFLOP/s},
          launch: 5 us, efficiency: {points: [[1 MFLOP, 50%], [1 GFLOP, 90%]]}}
  slow: {backend: cpu, memory: 4 GiB, memory_bandwidth: 10 GB/s, rates: {float32: 20 GFLOP/s, float64: 10 GFLOP/s},
         launch: 5 us, efficiency: {points: [[1 MFLOP, 50%], [1 GFLOP, 90%]]}}
nodes:
  - name: fast
    devices: [{kind: quick, count: 1}]
    link: {latency: 5 us, bandwidth: 5 GB/s}
    nic: {latency: 20 us, bandwidth: 1 GB/s}
  - name: late
    devices: [{kind: slow, count: 1}]
    link: {latency: 5 us, bandwidth: 5 GB/s}
    nic: {latency: 20 us, bandwidth: 1 GB/s}
network:
  - {name: net, link: {latency: 20 us, bandwidth: 1 GB/s}}
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"}
PLACER = [sys.executable, "-m", "placer"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def planned(folder: Path, cluster: str, name: str, pins: tuple[str, ...] = ()) -> Plan:
    """A plan, saved where a run looks for it."""
    spec = str(folder / "unlike.yaml") if cluster == "unlike" else cluster
    (folder / "unlike.yaml").write_text(CLUSTER)
    plan = placer.plan("examples.gpt:build", spec, batch="4x32", settings=RunSettings(precision="float64"), pins=pins)
    plan.save(folder / name)
    return plan


def on_two_hosts(folder: Path, nodes: tuple[str, str], report: str) -> list[tuple[int, str]]:
    """Exit code and errors of two torchruns, each a host of one rank that says to be that node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for number, node in enumerate(nodes):
        where = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
        where += ["--master-addr", "127.0.0.1", "--master-port", port, "--no-python"]
        run = [*TORCHRUN, *where, *PLACER, "execute", "plan.json", "--steps", "3", "--report", report]
        said = {**ENVIRONMENT, "PLACER_NODE": node}
        running.append(subprocess.Popen(run, cwd=folder, env=said, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=1800)[1] for process in running]
    return [(process.returncode, error) for process, error in zip(running, errors, strict=True)]


def test_two_swapped_hosts_train_as_one_device(tmp_path: Path) -> None:
    plan = planned(tmp_path, "unlike", "plan.json", pins=("pipeline=2",))
    first, second = (plan.cluster.nodes[plan.cluster.node_of[device]].name for device in plan.ranks)
    swapped = on_two_hosts(tmp_path, (second, first), "two.json")
    assert [code for code, _ in swapped] == [0, 0], swapped
    assert "ranks follow the plan" in swapped[0][1]
    planned(tmp_path, "localx1", "one.json")
    alone = [*TORCHRUN, "--standalone", "--nproc-per-node", "1", "--no-python", *PLACER, "execute", "one.json"]
    run = [*alone, "--steps", "3", "--report", "single.json"]
    subprocess.run(run, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=1800, check=True)
    losses = [json.loads((tmp_path / name).read_text())["losses"] for name in ("two.json", "single.json")]
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)  # the model casts its scores to float32


def test_hosts_of_another_plan_are_refused_before_training(tmp_path: Path) -> None:
    planned(tmp_path, "unlike", "plan.json", pins=("pipeline=2",))
    ended = on_two_hosts(tmp_path, ("fast", "fast"), "two.json")
    assert all(code for code, _ in ended)
    assert "other hosts than the plan is for" in ended[0][1]
    assert 'Traceback (most recent call last):\n  File "<frozen' not in ended[0][1].partition("other hosts")[0]
    assert not (tmp_path / "two.json").exists()
