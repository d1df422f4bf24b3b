"""A checkpoint of any layout goes on under any other as it would have gone on under its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import weight_ranks
from pool import on_ranks
from weight_plans import layouts, split_and_sharded

PLANS = {**layouts(), "TP2 x FSDP2": split_and_sharded()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[float]]]:
    """For each layout a checkpoint after two steps, and the losses of the two steps after it."""
    found = {}
    for index, (name, plan) in enumerate(PLANS.items()):
        folder = tmp_path_factory.mktemp(f"layout{index}")
        found[name] = folder, on_ranks(plan.world_size, weight_ranks.save, plan, str(folder))[0]
    return found


@pytest.mark.parametrize("target", PLANS)
def test_next_steps_are_those_of_the_run_that_saved(target: str, saved: dict[str, tuple[Path, list[float]]]) -> None:
    plan = PLANS[target]
    folders = tuple(str(folder) for folder, _ in saved.values())
    for losses in on_ranks(plan.world_size, weight_ranks.resume, plan, folders):
        for (source, (_, expected)), found in zip(saved.items(), losses, strict=True):
            assert found == pytest.approx(expected, rel=1e-9), f"{source} -> {target}"


def test_state_on_the_host_goes_on_from_any_checkpoint(saved: dict[str, tuple[Path, list[float]]]) -> None:
    plan, sources = PLANS["PP2 x ZeRO1"], [saved["one device"], saved["PP2 x ZeRO1"]]
    found = on_ranks(plan.world_size, weight_ranks.resume_on_host, plan, tuple(str(folder) for folder, _ in sources))
    for losses, (_, expected) in zip(found[0], sources, strict=True):
        assert losses == pytest.approx(expected, rel=1e-9)


def test_a_checkpoint_written_beside_the_next_steps_holds_what_was_when_it_was_asked_for(
    tmp_path: Path, saved: dict[str, tuple[Path, list[float]]]
) -> None:
    plan = PLANS["TP2 x FSDP2"]
    losses = on_ranks(4, weight_ranks.save_beside, plan, str(tmp_path))[0]
    assert losses == pytest.approx(saved["one device"][1], rel=1e-9)
    again = on_ranks(1, weight_ranks.resume, PLANS["one device"], (str(tmp_path),))[0]
    assert again[0] == pytest.approx(losses, rel=1e-9)
