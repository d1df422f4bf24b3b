"""The plan table and the documents say what the plan says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from placer.cli.commands.running.execute import run_view
from placer.report.comparison import comparison_view
from placer.report.documents import ledger_document, plan_document
from placer.report.plan_table import ranges_text, rows_text
from placer.report.printing import bytes_text, plain, seconds_text
from placer.runtime.training.run_report import RunReport
from plans import two_stage_plan


def test_the_table_shows_layout_seconds_bytes_mfu_gap_assumptions_and_runners_up() -> None:
    text = str(two_stage_plan())
    for said in (
        "two cores (2 of 2 devices)",
        "2 microbatches of 4 rows",
        "schedule 1f1b",
        "predicted step 41 ms",
        "MFU 48.8%",
        "gap 2.5%",
        "7 MiB",
        "data parallel x2",
        "reduces 6 MiB each step",
        "assumed: a batch of 8 rows",
    ):
        assert said in text, said


def test_the_table_is_plain_text() -> None:
    assert "\x1b" not in str(two_stage_plan())


def test_a_plan_without_prediction_or_bound_still_prints() -> None:
    plan = replace(two_stage_plan(), ledger=None, bound=None)
    assert "schedule 1f1b" in str(plan)
    assert "no lower bound" in str(replace(two_stage_plan(), bound=None))


def test_the_document_carries_units_and_is_json() -> None:
    document = json.loads(json.dumps(plan_document(two_stage_plan())))
    assert document["step_time_seconds"] == pytest.approx(0.010 + 0.020 + 0.002 + 0.008 + 0.001)
    assert document["peak_memory_bytes"] == 7 * 2**20
    assert document["bound_seconds"] == 0.040
    assert document["gap"] == pytest.approx((0.041 - 0.040) / 0.040)
    assert [stage["devices"] for stage in document["stages"]] == [[0], [1]]


def test_the_seconds_of_a_document_add_up_to_the_step() -> None:
    ledger = two_stage_plan().ledger
    assert ledger is not None
    document = ledger_document(ledger)
    time = document["time"]
    assert isinstance(time, dict)
    assert sum(value for value in time.values() if isinstance(value, float)) == pytest.approx(ledger.step_seconds)


def test_predicted_stands_beside_measured_with_their_ratio() -> None:
    predicted = two_stage_plan().ledger
    assert predicted is not None
    text = plain(comparison_view(predicted, replace(predicted, step_seconds=2 * predicted.step_seconds)))
    assert "2.00" in text
    assert "82 ms" in text


def test_totals_compare_what_both_have_and_the_rest_is_named() -> None:
    predicted = two_stage_plan().ledger
    assert predicted is not None
    overhead = 100 * 2**20
    heavier = tuple(replace(memory, overhead=overhead) for memory in predicted.memory)
    text = plain(comparison_view(replace(predicted, memory=heavier), predicted))
    total = next(line for line in text.splitlines() if line.startswith("bytes on the fullest device"))
    assert total.split()[-1] == "1.00"
    assert "left out of the bytes on the fullest device: overhead (100 MiB predicted)" in text
    assert "left out" not in plain(comparison_view(predicted, predicted))


def test_a_calibration_that_was_disturbed_is_noted_under_its_plans() -> None:
    plan = two_stage_plan()
    cluster = replace(plan.cluster, notes=("measured on a chip", "measured while other work ran"))
    assert "note: two cores was measured while other work ran" in str(replace(plan, cluster=cluster))
    assert "note: " not in str(plan)


def test_a_run_too_short_to_measure_and_one_that_was_complete_say_so() -> None:
    report = RunReport(ranks=2, data="made", first_step=0, losses=(5.0, 4.0), step_seconds=(0.1, 0.1), rows=8)
    said = " ".join(plain(run_view(report)).split())
    assert "measured from step 4 of a run on, and this one did 2; give --steps 4" in said
    complete = replace(report, first_step=2, losses=(), step_seconds=())
    assert "nothing was left to do: the checkpoint is of step 2" in plain(run_view(complete))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (1.5, "1.5 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 us"), (3e-9, "3 ns")]
)
def test_seconds_are_readable(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (80 * 2**30, "80 GiB")])
def test_bytes_are_readable(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_device_ranges_and_row_counts_are_short() -> None:
    assert ranges_text((0, 1, 2, 3, 8)) == "0-3, 8"
    assert ranges_text((0, 2, 3)) == "0, 2-3"
    assert rows_text((8, 8, 8, 2)) == "microbatches of 3 x 8 + 1 x 2 rows"
    assert rows_text((1,)) == "1 microbatch of 1 row"
