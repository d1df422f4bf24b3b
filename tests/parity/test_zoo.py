"""The zoo's judge can be trusted: its models train, and it sees what is planted."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from examples.parity.zoo.comparing import EXACT, differences
from examples.parity.zoo.eager import Numbers
from examples.parity.zoo.families import ENTRIES, FAMILIES
from examples.parity.zoo.judge import Judge
from examples.parity.zoo.judged import judged
from examples.parity.zoo.models.second import shifted_rows
from examples.parity.zoo.models.third import asks_for_ranks, counted_rows, routed, taken_for_granted
from placer.runtime.distributed.rank_pool import RankPool

pytestmark = pytest.mark.in_turns

BY_NAME = {one.name: one for one in ENTRIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_model_of_a_family_trains_in_the_plain_loop(family: int) -> None:
    for one in (one for one in ENTRIES if one.family == family):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Judge(one, 0).expected("float64")
        tensors = (*found.gradients[0].values(), *found.after.values())
        assert all(bool(tensor.isfinite().all()) for tensor in tensors if tensor.is_floating_point()), one.name
        assert any(bool(gradient.any()) for gradient in found.gradients[0].values()), one.name


def test_names_are_of_one_model_each() -> None:
    assert len(BY_NAME) == len(ENTRIES)


@pytest.mark.parametrize("what", ["gradient", "loss", "final", "names"])
def test_a_planted_mistake_is_seen(what: str) -> None:
    right = Judge(BY_NAME["ReZero"], 0).expected("float64")
    assert differences(right, right, EXACT) == ""
    assert what in differences(_planted(right, what), right, EXACT)


def test_rows_that_mix_do_not_add_up() -> None:
    assert not Judge(BY_NAME["CentredRows"], 0).divides
    assert not Judge(BY_NAME["PlainNorm"], 0).divides
    assert Judge(BY_NAME["PlainSum"], 0).divides


@pytest.mark.parametrize("name", ["ReZero", "MaskTokens", "OwnKernels"])
def test_a_plain_model_is_equal_under_the_first_layouts(name: str) -> None:
    with RankPool(2) as pool:
        cases = list(judged(pool, [BY_NAME[name]], "quick", "", 0))
    assert len(cases) == 5
    assert [(case.layout, case.told) for case in cases if case.verdict != "equal"] == []


def test_rows_that_meet_by_where_they_stand_are_refused_or_equal() -> None:
    """Whether a model's rows keep apart, the plain loop tells, not the rules that are asked."""
    names = {one.name for one in (*shifted_rows.ENTRIES, *routed.ENTRIES, *counted_rows.ENTRIES)}
    with warnings.catch_warnings(), RankPool(2) as pool:
        warnings.simplefilter("ignore")
        cases = list(judged(pool, [BY_NAME[name] for name in sorted(names)], "quick", "", 0))
    assert {case.entry.name for case in cases} == names
    wrong = [case for case in cases if case.verdict not in ("equal", "refused")]
    assert [(case.entry.name, case.layout, case.told) for case in wrong] == []
    whole = {case.entry.name for case in cases if case.verdict == "refused" and case.layout == "data=2"}
    assert whole == names - {
        "TokenBefore", "OddScale", "Routed", "BiasedExperts", "Suppressed", "Reciprocal", "Unbiased",
        "Smoothed", "Weighed",
    }  # fmt: skip


def test_what_a_capture_takes_for_granted_is_looked_at() -> None:
    """Sizes of one, memory, modes, flags: no layout gives other numbers than the plain loop."""
    with warnings.catch_warnings(), RankPool(4) as pool:
        warnings.simplefilter("ignore")
        cases = [
            case
            for which, only in (("quick", ""), ("all", "tensor=2"), ("all", "shard=optimizer"))
            for case in judged(pool, list(taken_for_granted.ENTRIES), which, only, 0)
        ]
    wrong = [case for case in cases if case.verdict not in ("equal", "refused")]
    assert [(case.entry.name, case.layout, case.told) for case in wrong] == []
    alone = {case.entry.name for case in cases if case.verdict == "refused" and case.layout == "one device"}
    assert alone == taken_for_granted.REFUSED
    cut = {case.entry.name for case in cases if case.verdict == "equal" and case.layout == "tensor=2"}
    assert cut >= {"LerpedMean", "WrittenAsOut"}


def test_a_model_that_asks_for_ranks_hears_of_none() -> None:
    """What it would send to other ranks, or take from them, one device does not: nor does a rank of a plan."""
    with warnings.catch_warnings(), RankPool(4) as pool:
        warnings.simplefilter("ignore")
        cases = [
            case
            for which, only in (("quick", ""), ("all", "tensor=2"))
            for case in judged(pool, list(asks_for_ranks.ENTRIES), which, only, 0)
        ]
    wrong = [case for case in cases if case.verdict not in ("equal", "refused")]
    assert [(case.entry.name, case.layout, case.told) for case in wrong] == []
    cut = {case.entry.name for case in cases if case.verdict == "equal" and case.layout == "tensor=2"}
    assert cut == {one.name for one in asks_for_ranks.ENTRIES}
    apart = {case.entry.name for case in cases if case.verdict == "equal" and case.layout == "data=2"}
    assert apart == {"CountedBoxes", "WiderOnMore"}


def _planted(right: Numbers, what: str) -> Numbers:
    off = 1 + 1e-8
    if what == "loss":
        return replace(right, losses=(*right.losses[:2], right.losses[2] * off))
    if what == "gradient":
        step = {**right.gradients[1], "head.bias": right.gradients[1]["head.bias"] * off}
        return replace(right, gradients=(right.gradients[0], step, right.gradients[2]))
    if what == "final":
        return replace(right, after={**right.after, "gates.0": right.after["gates.0"] + torch.tensor(1e-8).double()})
    return replace(right, before={name: one for name, one in right.before.items() if name != "head.bias"})
