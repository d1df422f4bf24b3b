"""Ops timed one by one: what they are said to move is what the graph counts, and what they reached prices them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from placer.cluster.calibrate import timings
from placer.cluster.calibrate.op_timings import OPS, TimedOp
from placer.cluster.calibrate.result import AttentionTime, Calibration, DeviceMeasurement, OpTime, local_description
from placer.cluster.cluster import Device
from placer.cluster.cluster_file import cluster_yaml, parse_cluster
from placer.costs.compute.roofline import op_seconds
from placer.costs.precision import Numerics, op_name
from placer.graph import Graph, Op
from placer.plans.settings import RunSettings
from placer.runtime.dry.fake_world import fake_world
from placer.tracer import capture

pytestmark = pytest.mark.in_turns

BANDWIDTH, RATE = 1e10, 1e11


class _One(nn.Module):
    """A model that is one timed op, on values that need gradients."""

    def __init__(self, timed: TimedOp) -> None:
        super().__init__()
        self.timed = timed
        self.scale = nn.Parameter(torch.ones(()))
        self.weight = nn.Parameter(torch.randn(timed.shapes[1])) if len(timed.shapes) > 1 else None

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        given = (x * self.scale,) if self.weight is None else (x * self.scale, self.weight)
        return self.timed.run(*given, *(labels,) * (self.timed.labels > 0)).sum()


def _result(out: object, _: object) -> torch.Tensor:
    assert isinstance(out, torch.Tensor)
    return out


def _captured(timed: TimedOp) -> Graph:
    rows = timed.shapes[0][0]
    batch = {"x": torch.randn(timed.shapes[0]), "labels": torch.zeros(rows, dtype=torch.int64)}
    if timed.labels:
        return capture(_One(timed), batch=batch)
    return capture(_One(timed), batch=batch, loss_fn=_result)


@pytest.mark.parametrize("timed", OPS, ids=lambda one: f"{one.name}{one.shapes[0]}")
def test_an_op_is_timed_over_the_bytes_that_the_graph_counts(timed: TimedOp) -> None:
    rows = timed.shapes[0][0]
    op = [op for op, _ in _ops(_captured(timed)) if op_name(op) == timed.name][-1]  # the first scales the input
    counted = op.read_bytes.at(rows) + op.written_bytes.at(rows)
    behind = op.backward_read_bytes.at(rows) + op.backward_written_bytes.at(rows)
    assert timed.moved == pytest.approx((counted, behind), rel=0.02)
    assert timed.flops == op.forward_flops.at(rows)


def _ops(graph: Graph) -> list[tuple[Op, int]]:
    return [(op, block.kind) for block in graph.blocks for op in graph.classes[block.kind].ops]


def _calibration(ops: tuple[OpTime, ...], attention: AttentionTime | None = None) -> Calibration:
    """A process of 100 GFLOP/s and 10 GB/s that measured these."""
    one = DeviceMeasurement(
        name="process", backend="cpu", memory_bytes=2**34, products={"float32": ((1.0, RATE), (1e12, RATE))},
        memory_bandwidth=BANDWIDTH, mixed_bandwidth=BANDWIDTH / 2, launch_seconds=0.0, overhead_bytes=0,
        attention=attention, ops=ops,
    )  # fmt: skip
    return Calibration(devices=(one,))


def _timed(timed: TimedOp, seconds: tuple[float, float]) -> OpTime:
    return OpTime(name=timed.name, flops=timed.flops, moved=timed.moved, seconds=seconds)


@pytest.mark.parametrize("name", ["linear", "conv2d", "softmax", "cross_entropy_loss"])
def test_what_was_timed_is_what_its_op_is_predicted_to_take(name: str) -> None:
    timed = next(one for one in OPS if one.name == name)
    cluster = local_description(_calibration((_timed(timed, (0.02, 0.05)),)), name="x")
    assert parse_cluster(cluster_yaml(cluster)) == cluster
    found = _priced(timed, cluster.devices[0])
    assert found == pytest.approx((0.02, 0.05), rel=0.01)


def test_an_op_that_was_not_timed_has_what_one_of_its_kind_reached() -> None:
    """A pointwise op what the cheapest of them did, a norm what all ops together did."""
    measured = {one.name: one for one in OPS}
    cluster = local_description(_calibration((_timed(measured["mul"], (0.02, 0.05)),)), name="x")
    chip, tanh, norm = cluster.devices[0], measured["tanh"], measured["layer_norm"]
    share = measured["mul"].moved[0] / 0.02 / BANDWIDTH
    assert _priced(tanh, chip)[0] == pytest.approx(tanh.moved[0] / (BANDWIDTH * share), rel=0.01)
    assert _priced(norm, chip)[0] == pytest.approx(norm.moved[0] / (BANDWIDTH * chip.memory_share), rel=0.02)


def test_attention_takes_what_each_head_takes_beside_its_products() -> None:
    timed = AttentionTime(rates=(RATE, RATE), head_seconds=(1e-3, 3e-3))
    cluster = local_description(_calibration((), timed), name="x")
    assert parse_cluster(cluster_yaml(cluster)) == cluster

    class Heads(nn.Module):
        """Four heads."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.scale
            return torch.nn.functional.scaled_dot_product_attention(x, x, x).sum()

    graph = capture(Heads(), batch={"x": torch.randn(2, 4, 16, 8)}, loss_fn=_result)
    (found,) = [one for one in _ops(graph) if one[0].kind == "attention"]
    chip = cluster.devices[0]
    with_heads, without = _op_seconds(graph, found, chip, 2), _op_seconds(graph, found, _headless(chip), 2)
    assert with_heads[0] - without[0] == pytest.approx(2 * 4 * 1e-3)
    assert with_heads[1] - without[1] == pytest.approx(2 * 4 * 3e-3)


def _headless(chip: Device) -> Device:
    return replace(chip, head_seconds=(0.0, 0.0))


def _priced(timed: TimedOp, chip: Device) -> tuple[float, float]:
    graph = _captured(timed)
    found = next(one for one in _ops(graph) if op_name(one[0]) == timed.name)
    return _op_seconds(graph, found, chip, timed.shapes[0][0])


def _op_seconds(graph: Graph, found: tuple[Op, int], chip: Device, rows: int) -> tuple[float, float]:
    op, kind = found
    numerics = Numerics.of(graph, RunSettings(), "cpu")
    number = numerics.ops(graph.classes[kind])[graph.classes[kind].ops.index(op)]
    seconds = op_seconds(op, number, chip, RunSettings(), rows)
    return seconds.forward, seconds.backward


def test_what_ranks_compute_between_two_communications_is_not_timed() -> None:
    with fake_world(0, 1):
        together = timings.Together(rank=0, size=1, device=torch.device("cpu"))
        found = timings._repeated(together, lambda: time.sleep(0.001), lambda: time.sleep(0.02), window=0.1)
    assert 0.001 <= found < 0.01
