"""`verify` finds what is planted into the runtime: a part of `python -m examples.parity.faults`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.parity.faults import running
from examples.parity.faults.__main__ import line
from examples.parity.faults.fault import Fault, replaced
from examples.parity.faults.running import FAULTS, Outcome, outcomes
from examples.parity.faults.subjects import SUBJECTS
from placer.runtime.stages import losses
from pool import pool

pytestmark = pytest.mark.in_turns

#: Those that the judge before this one could not see, and one of each other family.
CHOSEN = (
    "ignored labels counted", "rows of the second replica shifted by one", "AdamW's second beta 0.999",
    "dropout by the key of the next row", "weights stale by one step", "frozen parameters decay",
    "the weights' part of the last backward left out", "adjoint of halo rows: the neighbours' share forgotten",
    "tied gradients are not summed over stages", "ZeRO: rows that others updated are put one further",
    "clipping is left out", "running variance of pieces biased", "products in bfloat16 where the plan says float32",
    "a number of the batch drawn by each piece of it", "noise drawn anew where a block runs again",
)  # fmt: skip


def test_there_are_faults_of_every_kind_each_with_a_subject() -> None:
    assert len(FAULTS) >= 80
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.subject for fault in FAULTS} == set(SUBJECTS)


@pytest.fixture(scope="module")
def found() -> Iterator[dict[tuple[str, str], Outcome]]:
    pool().close()  # so that two pools do not crowd the machine
    chosen = [next(fault for fault in FAULTS if fault.name == name) for name in CHOSEN]
    yield {(outcome.name, outcome.subject): outcome for outcome in outcomes(chosen)}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_changes_a_result_and_is_caught(name: str, found: dict[tuple[str, str], Outcome]) -> None:
    (outcome,) = (one for (fault, _), one in found.items() if fault == name)
    assert outcome.right, line(outcome)
    assert outcome.report is not None and outcome.named != "equal"


def test_subjects_without_a_fault_are_equal(found: dict[tuple[str, str], Outcome]) -> None:
    plain = [outcome for outcome in found.values() if not outcome.planted]
    assert len(plain) == len({outcome.subject for outcome in found.values()})
    assert all(outcome.right for outcome in plain), [line(outcome) for outcome in plain if not outcome.right]


def test_what_changes_nothing_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Fault(
        name="the same count",
        subject="pipeline",
        plant=lambda: replaced(losses.counted, lambda real, *given: real(*given)),
    )
    monkeypatch.setattr(running, "FAULTS", (harmless,))
    *_, outcome = outcomes((harmless,))
    assert outcome.planted and not outcome.changes and not outcome.right
    assert "changes nothing" in line(outcome)
