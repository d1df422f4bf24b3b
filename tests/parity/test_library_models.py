"""What models of libraries do and others seldom: with the numbers of one device, or refused."""

from __future__ import annotations

import warnings

import pytest
from library_models import ENTRIES

from examples.parity.zoo.judged import Judged, judged
from placer.runtime.distributed.rank_pool import RankPool

pytestmark = pytest.mark.in_turns

WHOLE = ("one device", "1 piece")


def cases(name: str, *layouts: str) -> dict[str, tuple[str, str]]:
    """What came of a model under the layouts that have these in their names, and what was said of it."""
    with warnings.catch_warnings(), RankPool(2) as pool:
        warnings.simplefilter("ignore")
        found: list[Judged] = []
        for layout in layouts:
            found += judged(pool, [ENTRIES[name]], "all", layout, 0)
    return {case.layout: (case.verdict, case.told) for case in found}


@pytest.mark.parametrize("name", ["older", "newer", "given"])
def test_what_is_run_again_is_run_with_the_weights_of_the_step(name: str) -> None:
    equal = ("equal", "")
    assert cases(name, *WHOLE) == {"one device": equal, "pipeline=2, 1 piece": equal}


def test_a_function_that_gives_gradients_on_the_side_is_refused() -> None:
    for verdict, told in cases("reversible", *WHOLE).values():
        assert verdict == "refused"
        assert told.startswith("part is opaque, and a run, which calls it with the weights of a step in")
        assert "would find others than it gives by itself for the inputs, layer.0.weight, layer.0.bias" in told
        assert "give an autograd.Function the weights as arguments" in told


@pytest.mark.parametrize("name", ["Registers", "Deeper"])
def test_a_parameter_without_elements_is_whole_on_every_replica(name: str) -> None:
    found = cases(name, "shard=")
    assert found.keys() >= {"shard=parameters", "shard=gradients", "shard=optimizer"}
    assert found == dict.fromkeys(found, ("equal", ""))


def test_weights_whose_results_nobody_reads_are_not_gathered() -> None:
    found = cases("lxmert", "shard=optimizer")
    assert found
    assert found == dict.fromkeys(found, ("equal", ""))
