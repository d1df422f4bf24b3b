"""A seeded sample of vTrain's measured steps against the estimate; `python -m examples.validate_vtrain` does all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from examples.validate_vtrain import Outcome, constant_errors, error, outcomes, runs


@pytest.fixture(scope="module")
def sample(shared: Path) -> tuple[Outcome, ...]:
    """60 rows of the smallest depth of both hidden sizes: two captures."""
    smallest = [run for run in runs(shared / "truth" / "training_runs.csv") if run.layers == 12]
    return outcomes(random.Random(0).sample(smallest, 60))


def test_all_rows_of_the_dataset_are_read(shared: Path) -> None:
    assert len(runs(shared / "truth" / "training_runs.csv")) == 640


def test_estimates_are_within_20_percent_of_measured_steps_on_average(sample: tuple[Outcome, ...]) -> None:
    assert error(sample) <= 0.20


def test_the_estimate_beats_the_best_constant_utilisation(sample: tuple[Outcome, ...]) -> None:
    _, best = constant_errors(sample)
    assert error(sample) < best / 2
