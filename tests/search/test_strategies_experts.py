"""Which expert lives where: balanced as well as can be, equal numbers on each device."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import UsageError
from placer.plans.settings import RunSettings
from placer.rules.expert_loads import device_loads, held_experts, overload
from placer.strategies.intra_op.expert_assignment import expert_order, least_load

LOADS = st.lists(st.integers(0, 20), min_size=4, max_size=8).filter(any).map(lambda found: tuple(map(float, found)))


def best_of_two(loads: tuple[float, ...]) -> float:
    """The least of the larger loads over all halves of the experts."""
    half = len(loads) // 2
    halves = combinations(range(len(loads)), half)
    return min(max(one := sum(loads[e] for e in chosen), sum(loads) - one) for chosen in halves)


@settings(max_examples=60, derandomize=True)
@given(loads=LOADS, degree=st.sampled_from([2, 3, 4]))
def test_every_expert_lives_on_one_device_and_devices_hold_their_piece(loads: tuple[float, ...], degree: int) -> None:
    order = expert_order(loads, degree)
    held = held_experts(len(loads), order, degree)
    assert sorted(expert for experts in held for expert in experts) == list(range(len(loads)))
    assert max(map(len, held)) - min(map(len, held)) <= 1


@settings(max_examples=60, derandomize=True)
@given(loads=LOADS.filter(lambda found: len(found) % 2 == 0))
def test_the_fullest_device_is_near_the_best_of_all_placements_and_never_below_the_bound(
    loads: tuple[float, ...],
) -> None:
    found = max(device_loads(loads, expert_order(loads, 2), 2)) * sum(loads)
    best = best_of_two(loads)
    assert least_load(loads, 2) <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= found <= best * 4 / 3 + 1e-9
    assert found <= max(device_loads(loads, (), 2)) * sum(loads) + 1e-9


def test_even_loads_keep_the_experts_in_their_own_order() -> None:
    assert expert_order((1.0,) * 8, 4) == expert_order((), 4) == ()
    assert overload((), (), 4) == 1.0
    assert overload((1.0,) * 8, (), 4) == 1.0


def test_a_device_with_the_only_busy_expert_does_all_the_work() -> None:
    assert overload((1.0, 0.0, 0.0, 0.0), (), 4) == 4.0


@pytest.mark.parametrize("loads", [(-1.0, 2.0), (0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)], ids=str)
def test_loads_that_say_nothing_are_refused(loads: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="expert_loads"):
        RunSettings(expert_loads=loads)
