"""Seconds of single ops beside those of one H200, measured op by op, and of whole steps there; what the machine's own
measuring makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.measured.calibrated.one_gpu import kept
from examples.measured.calibrated.ops import RESULTS, middle, ratios, read
from placer.cluster.calibrate.kernel_shares import KernelTimes, kernel_shares, warm_share
from placer.cluster.catalogue import catalogue_device, load_cluster
from placer.cluster.cluster_file import cluster_yaml, parse_cluster
from placer.costs.compute.integer_work import integer_seconds
from placer.graph import Affine, Op
from placer.plans.settings import RunSettings

pytestmark = pytest.mark.in_turns

# Every third case, of all kinds, types and sizes.
CASES = read(RESULTS)[::3]


def test_ops_take_about_what_they_took_on_that_gpu() -> None:
    """Fitted on the same file: this holds the formulas to it, not the fit to other chips."""
    found = ratios(CASES, catalogue_device("h200"))
    every = [ratio for own in found.values() for ratio in own]
    assert middle(every) == pytest.approx(1.0, abs=0.06)
    assert sum(abs(ratio - 1) for ratio in every) / len(every) < 0.15
    assert not {of: middle(own) for of, own in found.items() if not 0.7 < middle(own) < 1.45}


def test_measured_kernels_become_shares_of_the_rates() -> None:
    """FLOP/s as one H200 gave them; what is kept reads back from a file."""
    times = KernelTimes(
        aligned=569e12, misaligned=(214e12, 88e12), summed=731e12, tensor_float=(395e12, 231e12),
        attention=(511e12, 419e12), attention_float32=(44e12, 35e12), depthwise=(3e12, 1.8e12), images=25e12,
        warm=750e12, host_op_seconds=7.2e-6,
    )  # fmt: skip
    rates = {"float32": 51e12, "bfloat16": 785e12}
    kernels = kernel_shares([times, times], rates)
    assert kernels.streams
    assert kernels.sustained == 1.0  # of steps, in which a chip does not make products alone
    assert warm_share([times], rates) == pytest.approx(750 / 785, rel=0.01)
    assert warm_share([], rates) == 1.0
    assert kernels.misaligned == pytest.approx((0.376, 0.155), rel=0.01)
    assert kernels.tensor_float_sums == pytest.approx(0.585, rel=0.01)
    # Causal attention on 2,048 positions fills 84% of its pipeline: the share is that of many more.
    assert kernels.attention == pytest.approx((511 / 785 / 0.842, 419 / 785 / 0.842), rel=0.01)
    assert kernels.attention_float32 == pytest.approx((44 / 51, 35 / 51), rel=0.01)
    h200 = load_cluster("h200x1")
    assert h200.devices[0].kernels is not None
    assert parse_cluster(cluster_yaml(h200)).devices[0].kernels == h200.devices[0].kernels


STEPS = Path("examples/measured/results/h200-steps.jsonl")


@pytest.mark.parametrize("case", [
    "vit_base bfloat16", "vit_base tf32", "gpt2 bfloat16", "llama_1b float32", "llama_1b autocast", "resnet50 float32",
    "convnext_tiny bfloat16",
])  # fmt: skip
def test_steps_take_about_what_they_took_on_that_gpu(case: str, tmp_path: Path) -> None:
    """Some that wait for the host, some that do not, one that drops scores of attention, one that adds many gradients,
    and one with channels last; fitted on the same file."""
    (own,) = (line for line in STEPS.read_text().splitlines() if f'"{case}"' in line)
    (tmp_path / "case.jsonl").write_text(own)
    (found,) = kept(tmp_path / "case.jsonl", load_cluster("examples/measured/results/h200.yaml"))
    assert found.predicted_seconds[0] == pytest.approx(found.measured_seconds, rel=0.1)


@pytest.mark.parametrize(("name", "tensors", "written", "placed"), [
    ("mul", (8, 8), 8, False), ("mul", (8, 1), 8, True), ("where", (8, 8, 4), 8, False), ("gelu", (8,), 8, False),
])  # fmt: skip
def test_an_op_of_a_broadcast_tensor_finds_where_elements_lie(
    name: str, tensors: tuple[int, ...], written: int, placed: bool
) -> None:
    inputs = tuple(f"i{number}" for number in range(len(tensors)))
    op = Op(
        name=name, target=f"aten.{name}.default", kind="pointwise", inputs=inputs,
        read_bytes=Affine(fixed=sum(tensors)), written_bytes=Affine(fixed=written),
    )  # fmt: skip
    device = load_cluster("h200x1").devices[0]
    found = integer_seconds(op, 10**9, device, RunSettings(), 1)
    assert (found.forward > 0.001) == placed
    assert not integer_seconds(op, 10**9, replace(device, kernels=None), RunSettings(), 1).forward
