"""What ranks really communicate, recorded at torch's dispatcher, is what their programs say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from execute_plans import tiny_plan
from placer.program.instructions import Program
from placer.program.lowering import lower
from placer.runtime.distributed.launch import launch_module
from placer.runtime.measuring.communication_record import communications, compare
from record_ranks import CASES, OUTCOMES, Outcome

pytestmark = pytest.mark.in_turns

SECONDS = 1800.0


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    return outcomes(2, tmp_path_factory)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    return outcomes(4, tmp_path_factory)


def outcomes(ranks: int, folders: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    file = folders.mktemp("record") / "outcomes.json"
    launch_module(("record_ranks", str(file)), ranks, SECONDS)
    return OUTCOMES.validate_json(Path(file).read_text())


def differences(found: list[Outcome]) -> list[str]:
    assert all(outcome.count > 0 for outcome in found)
    return [difference for outcome in found for difference in outcome.differences]


@pytest.mark.parametrize("case", CASES[2])
def test_two_ranks_do_what_their_programs_say(case: str, two_ranks: dict[str, list[Outcome]]) -> None:
    assert differences(two_ranks[case]) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[4])
def test_four_ranks_do_what_their_programs_say(case: str, four_ranks: dict[str, list[Outcome]]) -> None:
    assert differences(four_ranks[case]) == []


@pytest.fixture(scope="module")
def program() -> Program:
    return lower(tiny_plan(2, 2))[0]


def test_a_message_that_was_not_sent_is_named(program: Program) -> None:
    done = list(communications(program))
    # The last of equal sends in a row: without an earlier one the difference shows here all the same.
    missing = next(i for i, entry in enumerate(done) if entry.kind == "send" and done[i + 1] != entry)
    found = compare(program, done[:missing] + done[missing + 1 :])
    assert found[0].startswith(f"rank 0, communication {missing}: the program says {done[missing]}, the rank did")
    assert found[-1].endswith("the rank did nothing")


def test_another_size_another_peer_and_another_order_are_named(program: Program) -> None:
    done = list(communications(program))
    assert compare(program, done) == ()
    for changed in (
        [replace(done[0], bytes=done[0].bytes + 1), *done[1:]],
        [replace(done[0], ranks=(7,)), *done[1:]],
        [*done[:-2], done[-1], replace(done[-2], bytes=8)] if done[-1] != done[-2] else [done[-1], *done[1:]],
        [*done, done[-1]],
    ):
        assert compare(program, changed)
