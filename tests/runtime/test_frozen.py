"""Frozen parameters: they stay as they are and cost nothing, and the others train as on one device. A model that the
caller gave to `load` and freezes or writes between steps: the run follows, or says that it would not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch

import weight_ranks
from examples.parity.cases import plan_of
from placer.plans.plan import Plan
from pool import on_ranks
from weight_plans import WORDS, layouts, split_and_sharded

ADAPTED = replace(WORDS, model="examples.parity.models:adapted_words")
PLANS = {**layouts(ADAPTED), "TP2 x FSDP2": split_and_sharded(ADAPTED)}

HELD_WHOLE = (
    "one device",
    "DP2",
    "PP2",
    "PP2 x ZeRO1",
    "SP2 x PP2",
)  # every weight in the model itself, on some rank
HELD_ASIDE = ("FSDP2", "TP2", "PP2 x FSDP2")
GIVEN = {name: plan for name, plan in layouts().items() if name in (*HELD_WHOLE, *HELD_ASIDE)}
TRAINS_ALONE = ("one device", "PP2")
SIXTEEN_BITS = plan_of(replace(WORDS, replicas=2, precision="bfloat16"))


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PLANS)
def test_adapters_train_as_on_one_device_and_nothing_else_changes(name: str) -> None:
    plan = PLANS[name]
    for report, changed, touched, differences in on_ranks(plan.world_size, weight_ranks.frozen, plan):
        assert report.passed, str(report)
        assert changed == touched == ()
        assert differences == 0


@cache
def on_one_device(change: Callable[..., None]) -> dict[str, torch.Tensor]:
    found = on_ranks(1, weight_ranks.after_change, GIVEN["one device"], change)[0]
    assert isinstance(found, dict)
    return found


def require_followed(plan: Plan, change: Callable[..., None], on_one: Callable[..., None] | None = None) -> None:
    """Assert that every rank goes on after a change as one device does, there after the change `on_one`."""
    expected = on_one_device(on_one or change)
    for state in on_ranks(plan.world_size, weight_ranks.after_change, plan, change):
        assert isinstance(state, dict) and same(state, expected)


def require_refused(plan: Plan, change: Callable[..., None], *words: str) -> None:
    """Assert that every rank refuses the step after a change, with these words."""
    for told in on_ranks(plan.world_size, weight_ranks.after_change, plan, change):
        assert isinstance(told, str) and all(word in told for word in words)


@pytest.mark.parametrize("name", GIVEN)
def test_freezing_between_steps_is_followed_or_refused_and_freezing_for_a_while_is_not(name: str) -> None:
    plan = GIVEN[name]
    if name in TRAINS_ALONE:
        require_followed(plan, weight_ranks.freeze)
    else:
        require_refused(plan, weight_ranks.freeze, "frozen since then", "plan the model as it is now")
    require_followed(plan, weight_ranks.freeze_for_a_while)


@pytest.mark.parametrize("name", GIVEN)
def test_weights_written_between_steps_are_followed_or_refused(name: str) -> None:
    plan = GIVEN[name]
    if name in HELD_WHOLE:
        require_followed(plan, weight_ranks.halve)
    else:
        require_refused(plan, weight_ranks.halve, "written since then")
    require_followed(plan, weight_ranks.halve_state, weight_ranks.halve)


@pytest.mark.parametrize("name", GIVEN)
def test_a_model_that_is_given_the_weights_of_its_run_trains_on(name: str) -> None:
    plan = GIVEN[name]
    require_followed(plan, weight_ranks.bring_up)
    require_followed(plan, weight_ranks.as_advised, weight_ranks.zero_a_row)


@pytest.mark.in_turns
def test_what_float32_masters_would_overwrite_is_refused() -> None:
    require_refused(SIXTEEN_BITS, weight_ranks.halve, "load_state_dict")
    for state in on_ranks(2, weight_ranks.after_change, SIXTEEN_BITS, weight_ranks.bring_up):
        assert isinstance(state, dict)


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states agree to 1e-9."""
    return all(torch.allclose(first[name], second[name], rtol=1e-9, atol=1e-12) for name in second)
