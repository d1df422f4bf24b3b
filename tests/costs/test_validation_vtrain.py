"""All 640 of vTrain's measured steps with tensor degree 1 against the estimate.

20% was wanted of constants committed before the first comparison; they reached 24.9%. The bound held here is of the
model since, at 7.9% with the rows' own vocabulary. What was changed, and why, stands in
`examples/published/validate_vtrain.py`, which prints the errors by degree and size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.published.validate_vtrain import Outcome, constant_errors, error, gpt, outcomes, runs, shallow


@pytest.fixture(scope="module")
def found(shared: Path) -> tuple[Outcome, ...]:
    """Every row with its estimate: two captures."""
    return outcomes(runs(shared / "truth" / "training_runs.csv"))


@pytest.mark.in_turns
def test_all_rows_of_the_dataset_are_estimated(found: tuple[Outcome, ...]) -> None:
    assert len(found) == 640


def test_estimates_are_within_10_percent_of_measured_steps_on_average(found: tuple[Outcome, ...]) -> None:
    assert error(found) <= 0.10


def test_the_estimate_errs_less_than_half_as_much_as_the_best_constant_utilisation(found: tuple[Outcome, ...]) -> None:
    _, best = constant_errors(found)
    assert error(found) < best / 2


@pytest.mark.in_turns
def test_a_deepened_capture_equals_a_capture_of_the_deeper_model() -> None:
    assert gpt(1024, 5, 16, 1024) == shallow(1024, 16, 1024, layers=5)
