"""Strategies side by side: what is counted, kept and gone on from, and the command."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from placer.cli import app
from placer.errors import UsageError
from placer.search.asked import Budget
from placer.search.comparison import Case, Outcome, compared, keep, kept_outcomes
from placer.search.placed import compared_files
from placer.search.standings import standings
from placer.search.suite import read_suite
from problems import random_problem

NAMES = ("single", "data", "stages")
BUDGET = Budget(evaluations=50)


def cases(count: int = 3) -> list[Case]:
    """Small problems by name."""
    return [Case(name=f"problem {seed}", make=partial(random_problem, seed)) for seed in range(count)]


def outcome(strategy: str, case: str, seconds: float | None) -> Outcome:
    """One made up."""
    return Outcome(
        case=case, strategy=strategy, seed=0, budget="", step_time_seconds=seconds, bound_seconds=None, evaluations=1,
        search_time_seconds=0.5,
    )  # fmt: skip


def test_every_strategy_is_asked_about_every_problem_and_the_exact_one_is_best() -> None:
    found = list(compared(cases(), NAMES, [0], [Budget()]))
    assert [one.key[:2] for one in found] == [(case.name, name) for case in cases() for name in NAMES]
    best = next(own for own in standings(found) if own.strategy == "stages")
    assert (best.solved, best.worst_gap, best.nearer) == (3, 0.0, 1.0)


def test_a_gap_is_to_the_best_plan_of_anybody_and_cases_without_any_plan_do_not_count() -> None:
    made = [
        outcome("slow", "a", 2.0), outcome("slow", "b", 1.02), outcome("slow", "c", None),
        outcome("quick", "a", 1.0), outcome("quick", "b", 1.0), outcome("quick", "c", None),
        outcome("picky", "a", None), outcome("picky", "b", 1.0),
    ]  # fmt: skip
    quick, picky, slow = standings(made)
    assert (quick.strategy, quick.runs, quick.solved, quick.worst_gap) == ("quick", 2, 2, 0.0)
    assert (picky.strategy, picky.runs, picky.solved, picky.nearer) == ("picky", 2, 1, 0.5)
    assert slow.median_gap == pytest.approx((1.0 + 0.02) / 2)
    assert (slow.near, slow.nearer) == (0.5, 0.0)


def test_a_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    every = list(compared(cases(2), NAMES, [0], [BUDGET]))
    for one in every[:4]:
        keep(path, one)
    path.write_bytes(path.read_bytes() + b'{"case": "problem 1", "stra')  # killed while it wrote
    assert kept_outcomes(path) == tuple(every[:4])
    rest = list(compared(cases(2), NAMES, [0], [BUDGET], kept_outcomes(path)))
    assert [one.key for one in rest] == [one.key for one in every[4:]]
    keep(path, rest[0])
    assert kept_outcomes(path) == (*every[:4], rest[0])


def test_another_budget_is_another_question() -> None:
    known = list(compared(cases(1), NAMES, [0], [BUDGET]))
    again = compared(cases(1), NAMES, [0], [Budget(evaluations=60)], known)
    assert len(list(again)) == len(NAMES)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"case": 3}\n')
    with pytest.raises(UsageError, match=r"rows.jsonl holds no outcomes of strategies: case: .*; name another file"):
        kept_outcomes(path)


def test_a_problem_that_fits_nowhere_has_a_reason_and_no_plan() -> None:
    (case,) = cases(1)
    nodes = tuple(
        (replace(node, devices=tuple((replace(chip, memory_bytes=1), count) for chip, count in node.devices)), many)
        for node, many in case.problem.cluster.groups
    )
    small = replace(case.problem, cluster=replace(case.problem.cluster, groups=nodes))
    (found,) = compared([Case(name="tight", make=lambda: small)], ["data"], [0], [BUDGET])
    assert found.step_time_seconds is None
    assert "memory on device" in found.reason


def test_the_command_compares_on_drawn_problems_and_writes_what_it_found(tmp_path: Path) -> None:
    given = [
        "bench", "strategies", "--generated", "2", "--strategies", "single,data", "--budget", "5",
        "--rows", str(tmp_path / "rows.jsonl"), "--csv", str(tmp_path / "all.csv"),
        "--markdown", str(tmp_path / "t.md"),
    ]  # fmt: skip
    document = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert {own["strategy"] for own in document["strategies"]} == {"single", "data"}
    assert len(document["outcomes"]) == 4
    again = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert again == document  # nothing was searched a second time
    with (tmp_path / "all.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert min(float(line["gap"]) for line in lines) == 0.0
    assert (tmp_path / "t.md").read_text().count("\n") == 4


def test_what_is_known_is_shown_without_a_model(tmp_path: Path) -> None:
    rows, suite = tmp_path / "rows.jsonl", tmp_path / "suite.yaml"
    suite.write_text("models: [{name: a, model: nowhere:nothing, batch: 8x4}]\nclusters: [h100x2]\n")
    keep(rows, replace(outcome("single", "a on h100x2", 1.0), budget="5"))
    kept = ["bench", "strategies", "--rows", str(rows), "--json"]
    for given in (["--suite", str(suite), "--strategies", "single", "--budget", "5"], ["--generated", "0"]):
        found = CliRunner().invoke(app, [*kept, *given], catch_exceptions=False)
        assert [own["case"] for own in json.loads(found.stdout)["outcomes"]] == ["a on h100x2"]
    with pytest.raises(UsageError, match="nowhere"):
        CliRunner().invoke(app, [*kept, "--suite", str(suite), "--strategies", "data"], catch_exceptions=False)


def test_a_search_tells_how_its_best_became_better() -> None:
    (case,) = cases(1)
    (found,) = compared([case], ["local"], [0], [Budget(evaluations=200)])
    times, seconds = zip(*found.curve, strict=True)
    assert list(times) == sorted(times)
    assert list(seconds) == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(seconds) > 1
    assert seconds[-1] == found.step_time_seconds
    assert times[-1] <= found.search_time_seconds


def test_only_what_draws_is_asked_with_every_seed() -> None:
    found = compared(cases(1), ["single", "local"], [0, 1], [Budget(evaluations=5)])
    assert [(one.strategy, one.seed) for one in found] == [("single", 0), ("local", 0), ("local", 1)]


def test_a_suite_names_models_batches_and_clusters(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("models: [{name: a, model: m:f, batch: 8x4}]\nclusters: [h100x2]\n")
    suite = read_suite(str(path))
    assert (suite.models[0].batch, suite.clusters) == ("8x4", ("h100x2",))
    path.write_text("models: [{name: a, model: m:f}, {name: a, model: m:g}]\nclusters: [h100x2]\n")
    with pytest.raises(UsageError, match="names 'a' twice; give each model a name of its own"):
        read_suite(str(path))
    path.write_text("models: [{name: a, modle: m:f}]\nclusters: [h100x2]\n")
    with pytest.raises(UsageError, match=r"line 1.*modle"):
        read_suite(str(path))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--measure"], "--measure runs plans on this machine, and"),
        (["a:b", "--cluster", "h100x2", "--measure"], "the cluster is h100x2; name small models"),
        (["--strategies", "single,magic"], "--strategies names 'magic'"),
        (["--generated", "0"], "there is nothing to compare on"),
    ],
)
def test_misuse_is_told(given: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        CliRunner().invoke(app, ["bench", "strategies", *given], catch_exceptions=False)


def test_placement_files_are_compared_by_what_applies_to_them(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    nodes = [
        {"id": k, "cpuLatency": 9, "fpgaLatency": k + 1, "size": 1, "isBackwardNode": False, "supportedOnFpga": 1}
        for k in range(4)
    ]
    edges = [{"sourceId": k, "destId": k + 1, "cost": 0} for k in range(3)]
    path.write_text(json.dumps({"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 10, "nodes": nodes, "edges": edges}))
    names, budgets = ["min_cut", "etf", "local", "policy", "stages"], [Budget(evaluations=20)]
    every = list(compared_files([path], names, budgets, seeds=(0, 1)))
    # What asks for a model's blocks does not apply, and only what draws has several seeds.
    assert [(one.strategy, one.seed) for one in every] == [
        ("min_cut", 0), ("etf", 0), ("local", 0), ("local", 1), ("policy", 0), ("policy", 1)
    ]  # fmt: skip
    found = {one.strategy: one for one in every}
    assert found["min_cut"].step_time_seconds == found["min_cut"].bound_seconds == 1 + 2 + 3  # beside 4
    assert found["etf"].step_time_seconds is not None
    assert found["policy"].step_time_seconds == found["local"].step_time_seconds == 6
    assert not list(compared_files([path], names, budgets, every, seeds=(0, 1)))
