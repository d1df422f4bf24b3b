"""Schedules: complete, feasible, within the published memory, and in torch's order where torch has the schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import UsageError
from placer.plans.schedule import NAMES, Action, actions, in_flight, parse, text, timetable, violations

SINGLE = tuple(name for name in NAMES if name != "interleaved")


@st.composite
def structures(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """A schedule's name, positions, stages and microbatches."""
    name, positions = draw(st.sampled_from(NAMES)), draw(st.integers(1, 7))
    turns = draw(st.integers(1, 4)) if name == "interleaved" else 1
    return name, positions, positions * turns, draw(st.integers(1, 24))


@given(structures())
def test_every_schedule_does_every_action_once_and_runs_to_its_end(structure: tuple[str, int, int, int]) -> None:
    _, _, stages, microbatches = structure
    assert violations(actions(*structure), stages, microbatches) == ()


@given(structures())
def test_text_prints_and_parses(structure: tuple[str, int, int, int]) -> None:
    schedule = actions(*structure)
    assert parse(text(schedule)) == schedule


def test_an_action_is_written_stage_kind_microbatch() -> None:
    assert str(Action(2, "F", 0)) == "2F0"
    assert Action.parse("13W407") == Action(13, "W", 407)


@pytest.mark.parametrize("written", ["", "F0", "2X0", "2F", "2F0 ", "-1F0", "2f0"])
def test_what_is_no_action_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="2F0"):
        Action.parse(written)


def test_1f1b_is_the_published_order() -> None:
    assert text(actions("1f1b", 3, 3, 4)).splitlines() == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_1f1b_with_fewer_microbatches_than_stages_runs() -> None:
    schedule = actions("1f1b", 4, 4, 2)
    assert text(schedule).splitlines()[0] == "0F0 0F1 0B0 0B1"
    assert violations(schedule, 4, 2) == ()


@pytest.mark.parametrize("microbatches", range(1, 12))
def test_1f1b_and_zero_bubble_keep_no_more_activations_than_positions(microbatches: int) -> None:
    for name in ("1f1b", "zero-bubble"):
        assert max(in_flight(actions(name, 4, 4, microbatches))) == min(4, microbatches)


def test_1f1b_keeps_one_microbatch_less_per_position() -> None:
    assert in_flight(actions("1f1b", 4, 4, 8)) == (4, 3, 2, 1)


def test_gpipe_keeps_every_microbatch() -> None:
    assert in_flight(actions("gpipe", 3, 3, 5)) == (5, 5, 5)


def test_zero_bubble_halves_the_bubble_of_1f1b_in_unit_time() -> None:
    # F = I = W = 1, B = 2: 1F1B's bubble is (p-1)(F+B), ZB-H1's (p-1)(F+I-W)  (arXiv:2401.10241 table 2).
    positions, microbatches = 4, 8
    ends = {
        name: max(end for _, end in timetable(actions(name, positions, positions, microbatches), positions).values())
        for name in ("1f1b", "zero-bubble")
    }
    assert ends["1f1b"] == microbatches * 3 + (positions - 1) * 3
    assert ends["zero-bubble"] == microbatches * 3 + (positions - 1) * 1


def test_a_lone_position_splits_no_backward() -> None:
    """DDP sums gradients in a whole one: in two parts it would not know which is the last."""
    assert actions("zero-bubble", 1, 1, 3) == actions("1f1b", 1, 1, 3)


def test_interleaving_divides_the_bubble_by_the_stages_per_position() -> None:
    # A stage of half the size takes 1/2 and 1: the bubble is (p-1)(F+B)/v  (arXiv:2104.04473 section 2.2.2).
    half = {"F": 0.5, "B": 1.0, "I": 0.5, "W": 0.5}
    times = timetable(actions("interleaved", 4, 8, 8), 8, half)  # type: ignore[arg-type]
    assert max(end for _, end in times.values()) == pytest.approx(8 * 3 + 3 * 3 / 2)


@pytest.mark.parametrize(
    ("name", "positions", "stages", "why"),
    [
        ("1f1b", 2, 4, "one stage per position"),
        ("interleaved", 3, 4, "do not divide"),
        ("chimera", 2, 2, "no schedule"),
        ("gpipe", 0, 0, "at least one"),
    ],
)
def test_a_structure_a_schedule_cannot_have_is_refused_with_the_reason(
    name: str, positions: int, stages: int, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        actions(name, positions, stages, 4)


def test_a_missing_action_is_named() -> None:
    schedule = actions("1f1b", 2, 2, 2)
    broken = (schedule[0][:-1], schedule[1])
    assert violations(broken, 2, 2) == ("0B1 is missing",)


def test_a_repeated_and_a_foreign_action_are_named() -> None:
    schedule = actions("gpipe", 2, 2, 2)
    broken = ((*schedule[0], Action(0, "F", 0), Action(0, "F", 7)), schedule[1])
    found = violations(broken, 2, 2)
    assert any("0F0 appears 2 times" in message for message in found)
    assert any("0F7 is not wanted" in message for message in found)


def test_a_stage_on_two_positions_is_named() -> None:
    schedule = actions("gpipe", 2, 2, 2)
    broken = ((*schedule[0], schedule[1][-1]), schedule[1][:-1])
    assert "but stage 1 belongs to position" in violations(broken, 2, 2)[0]


def test_backward_before_forward_is_a_deadlock() -> None:
    broken = ((Action(0, "B", 0), Action(0, "F", 0)),)
    assert violations(broken, 1, 1) == ("position 0 waits for ever at 0B0, which needs 0F0",)


def test_an_order_no_position_can_follow_is_a_deadlock_with_both_waits_named() -> None:
    first, second = actions("1f1b", 2, 2, 2)
    crossed = (tuple(parse("0F0 0B0 0F1 0B1")[0]), tuple(parse("1F0 1F1 1B0 1B1")[0]))
    assert violations((first, second), 2, 2) == ()
    found = violations(crossed, 2, 2)
    assert [message.split(",")[0] for message in found] == [
        "position 0 waits for ever at 0B0",
        "position 1 waits for ever at 1F1",
    ]


def test_weights_before_inputs_is_a_deadlock() -> None:
    assert "0W0" in violations(parse("0F0 0W0 0I0"), 1, 1)[0]


@given(structures(), st.data())
def test_a_planted_swap_of_forward_and_backward_is_caught(
    structure: tuple[str, int, int, int], data: st.DataObject
) -> None:
    _, _, stages, microbatches = structure
    schedule = actions(*structure)
    position = data.draw(st.integers(0, len(schedule) - 1))
    line = list(schedule[position])
    action = data.draw(st.sampled_from([a for a in line if a.kind == "F"]))
    back = next(a for a in line if a.kind in "BI" and (a.stage, a.microbatch) == (action.stage, action.microbatch))
    here, there = line.index(action), line.index(back)
    line[here], line[there] = line[there], line[here]
    planted = (*schedule[:position], tuple(line), *schedule[position + 1 :])
    assert violations(planted, stages, microbatches)


def test_an_action_is_a_value() -> None:
    assert Action(1, "F", 2)._replace(kind="B") == Action(1, "B", 2)
