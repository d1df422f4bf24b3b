"""Products whose results have few tiles: long sums are divided (split-K); what is no matter of tiles costs none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.cluster.catalogue import catalogue_device
from placer.costs.compute.tile_quantization import FILL, shape_share

V100, A100 = catalogue_device("v100-32gb-pcie"), catalogue_device("a100-80gb-sxm4")
SIZES = st.integers(1, 4096)


def test_the_weight_gradient_of_a_convolution_uses_more_than_the_one_tile_it_has() -> None:
    """64 channels in and out of 64 images of 56 x 56: one tile of 64 x 64 on 80 multiprocessors, 200,704 steps of k."""
    share = shape_share(V100, "float16", 1, 64, 64, 64 * 56 * 56)
    assert share > 20 / V100.multiprocessors
    assert share <= 0.5 / 0.9  # the speed of that tile, beside what ceilings are measured with


def test_more_steps_of_a_sum_never_lower_the_share() -> None:
    shares = [shape_share(V100, "float32", 1, 128, 128, FILL * 2**power) for power in range(12)]
    assert shares == sorted(shares)


def test_a_result_of_enough_tiles_is_not_divided() -> None:
    """256 x 128 is the tile; 80 of them are one whole wave: only filling the pipeline is lost."""
    k = 4096
    share = shape_share(V100, "float32", 1, 256 * 10, 128 * 8, k)
    assert share == pytest.approx(min(1.0, k / (k + FILL) / (5120 / (5120 + FILL))), rel=0.03)


@given(SIZES, SIZES, SIZES, SIZES)
def test_a_share_is_above_0_and_at_most_1(batch: int, m: int, n: int, k: int) -> None:
    for dtype in ("float32", "float16"):
        assert 0 < shape_share(A100, dtype, batch, m, n, k) <= 1


@pytest.mark.parametrize(("m", "n", "k"), [(12544, 1, 9), (1, 9, 12544), (12544, 9, 1)])
def test_a_convolution_of_one_channel_each_runs_at_the_rate_of_plain_instructions(m: int, n: int, k: int) -> None:
    assert shape_share(V100, "float32", 96, m, n, k) == 1
    assert shape_share(V100, "float16", 96, m, n, k) == V100.rate("float32") / V100.rate("float16")
