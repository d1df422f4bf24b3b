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


@pytest.mark.parametrize("name", GIVEN)
def test_freezing_between_steps_is_followed_or_refused_and_freezing_for_a_while_is_not(name: str) -> None:
    plan = GIVEN[name]
    for told in on_ranks(plan.world_size, weight_ranks.after_change, plan, weight_ranks.freeze):
        if name in TRAINS_ALONE:
            assert isinstance(told, dict) and same(told, on_one_device(weight_ranks.freeze))
        else:
            assert isinstance(told, str)
            assert "frozen since then" in told and "plan the model as it is now" in told
    for state in on_ranks(plan.world_size, weight_ranks.after_change, plan, weight_ranks.freeze_for_a_while):
        assert isinstance(state, dict) and same(state, on_one_device(weight_ranks.freeze_for_a_while))


@pytest.mark.parametrize("name", GIVEN)
def test_weights_written_between_steps_are_followed_or_refused(name: str) -> None:
    plan = GIVEN[name]
    for found in on_ranks(plan.world_size, weight_ranks.after_change, plan, weight_ranks.halve):
        if name in HELD_WHOLE:
            assert isinstance(found, dict) and same(found, on_one_device(weight_ranks.halve))
        else:
            assert isinstance(found, str) and "written since then" in found
    for state in on_ranks(plan.world_size, weight_ranks.after_change, plan, weight_ranks.halve_state):
        assert isinstance(state, dict) and same(state, on_one_device(weight_ranks.halve))


@pytest.mark.parametrize("name", GIVEN)
def test_a_model_that_is_given_the_weights_of_its_run_trains_on(name: str) -> None:
    plan = GIVEN[name]
    for state in on_ranks(plan.world_size, weight_ranks.after_change, plan, weight_ranks.bring_up):
        assert isinstance(state, dict) and same(state, on_one_device(weight_ranks.bring_up))
    for state in on_ranks(plan.world_size, weight_ranks.after_change, plan, weight_ranks.as_advised):
        assert isinstance(state, dict) and same(state, on_one_device(weight_ranks.zero_a_row))


def test_what_float32_masters_would_overwrite_is_refused() -> None:
    for told in on_ranks(2, weight_ranks.after_change, SIXTEEN_BITS, weight_ranks.halve):
        assert isinstance(told, str) and "load_state_dict" in told
    for state in on_ranks(2, weight_ranks.after_change, SIXTEEN_BITS, weight_ranks.bring_up):
        assert isinstance(state, dict)


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states agree to 1e-9."""
    return all(torch.allclose(first[name], second[name], rtol=1e-9, atol=1e-12) for name in second)
