"""Published runs as problems: no row is dropped, and on some our plan is no slower than the published layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.published.outcomes import Outcome, line, regrets, summary
from examples.published.runs import FAMILIES, Run, published_runs
from examples.published.space import around
from examples.published.validate import outcomes
from placer.cluster.cluster import Cluster

# One small model on 2 devices: the group of its batch of 16 rows.
MODEL, DEVICES, ROWS = "gpt h1024 l12", 2, 16
COUNTS = {"vtrain": 1509, "megatron": 47, "bridge": 270}


@pytest.fixture(scope="module")
def table(shared: Path) -> Path:
    return shared / "truth" / "training_runs.csv"


@pytest.fixture(scope="module")
def group(table: Path) -> tuple[Outcome, ...]:
    """Every listed plan of one group, with ours."""
    runs = [r for r in published_runs(table, "vtrain") if (r.model, r.devices, r.rows) == (MODEL, DEVICES, ROWS)]
    return tuple(outcomes(runs))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_has_layouts_or_says_what_is_not_modelled(table: Path, family: str) -> None:
    runs = published_runs(table, family)
    assert len(runs) == COUNTS[family]
    for run in runs:
        assert bool(run.layouts) != bool(run.unmodelled), run.row
        assert run.unmodelled or run.shape is not None
        assert all(layout.devices <= run.devices for layout in run.layouts)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cluster_of_an_estimated_row_is_in_the_catalogue(table: Path, family: str) -> None:
    for name, devices in {(run.cluster, run.devices) for run in published_runs(table, family) if run.layouts}:
        assert Cluster.load(name).size == devices


def test_what_is_estimated_otherwise_is_said(table: Path) -> None:
    runs: dict[str, Run] = {run.row.rpartition("#")[2]: run for run in published_runs(table, "bridge")}
    assert any("recompute not printed" in note for note in runs["33"].notes)
    assert {layout.sharding for layout in runs["33"].layouts} == {"optimizer"}
    assert any("LoRA: the rank of its adapters is not printed, 32 is taken" in run.notes for run in runs.values())
    assert runs["33"].settings.float8
    assert "expert parallel 64 over the devices of tensor 2 too" in runs["276"].unmodelled[0]
    assert {(layout.context, layout.tensor) for layout in runs["34"].layouts} == {(2, 2)}
    assert {layout.expert for layout in runs["1"].layouts} == {32}
    assert any("sizes not printed" in reason for run in runs.values() for reason in run.unmodelled)


@pytest.mark.in_turns
def test_our_plan_is_no_slower_than_any_listed_one(group: tuple[Outcome, ...]) -> None:
    assert len(group) > 10
    assert all(outcome.slower is False for outcome in group)


def test_the_row_ranked_first_is_within_a_tenth_of_the_best_measured(group: tuple[Outcome, ...]) -> None:
    (regret,) = regrets(group)
    assert 0 <= regret <= 0.10


def test_the_space_of_a_published_layout_holds_it_and_only_layouts_of_its_devices(table: Path) -> None:
    run = next(run for run in published_runs(table, "megatron") if run.row.endswith("#6"))
    (published,) = run.layouts
    assert (published.tensor, published.pipeline, published.data, published.virtual) == (8, 4, 32, 3)
    space = tuple(around(run, published))
    assert published in space
    assert len(space) == len(set(space)) > 50
    for layout in space:
        assert layout.devices == run.devices
        assert run.rows % (layout.data * layout.rows) == 0
        assert run.shape is not None
        assert run.shape.layers % (layout.pipeline * layout.virtual) == 0


def test_vocabularies_are_padded_only_where_they_are_cut(table: Path) -> None:
    shapes = {(r.layouts[0].tensor, r.shape.vocabulary) for r in published_runs(table, "vtrain")[:1440] if r.shape}
    assert shapes == {(1, 50257), (2, 50432), (4, 50688), (8, 51200), (16, 51200)}


def test_a_slower_plan_of_ours_would_be_named(group: tuple[Outcome, ...]) -> None:
    one = group[0]
    assert one.ours is not None and one.rival is not None
    slow = replace(one, ours=replace(one.ours, seconds=2 * one.rival.seconds))
    assert slow.slower
    assert "SLOWER" in line(slow)
    assert "1 of 1" in summary("vtrain", [slow])
