"""A budget in evaluations, in seconds or both, and Ctrl-C: the best plan so far, with a bound that holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from graphs import BlockSpec, branching_graph, chain_graph, gpt_graph
from placer.api import solve
from placer.errors import InfeasibleError, UsageError
from placer.plans.plan import Plan
from placer.search.asked import Budget, budget_of
from placer.search.judge import solve_with
from placer.search.problem import Problem, Solution
from placer.strategies.policy.drawn import drawn_problem
from problems import cluster, device, nodes, problem

ROOT = Path(__file__).resolve().parents[2]
OVER = 0.0  # a moment long gone on the clock of `time.perf_counter`


def small() -> Problem:
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=1000 * (i + 1)) for i in range(4)]
    return problem(chain_graph(blocks, rows=4), cluster(*[device()] * 3))


def seconds(found: Solution) -> float:
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


@pytest.mark.parametrize(
    ("given", "evaluations", "limit"),
    [(None, None, None), (200, 200, None), ("200", 200, None), ("30s", None, 30.0), ("500 ms", None, 0.5),
     ("2min", None, 120.0), ("200,30s", 200, 30.0), ("30s, 200", 200, 30.0)],
)  # fmt: skip
def test_a_budget_is_read_as_people_write_it(given: str | int | None, evaluations: int, limit: float) -> None:
    assert budget_of(given) == Budget(evaluations=evaluations, seconds=limit)


@pytest.mark.parametrize("given", ["", "soon", "30 parsecs", "200,300", "1s,2s", "0", "-5s", "0s", 0])
def test_what_is_no_budget_is_refused(given: str | int) -> None:
    with pytest.raises(UsageError, match="budget"):
        budget_of(given)


def test_seconds_that_are_over_leave_a_plan_without_a_false_bound() -> None:
    best = solve_with(small(), "auto")
    found = solve_with(replace(small(), until=OVER), "auto")
    assert found.ended == "seconds"
    assert seconds(found) >= seconds(best)
    assert found.bound is None or found.bound <= seconds(best) * (1 + 1e-9)


def test_the_search_itself_says_that_it_had_no_time() -> None:
    with pytest.raises(InfeasibleError, match="seconds of the budget were over"):
        solve_with(replace(small(), until=OVER), "stages")


def test_seconds_that_suffice_change_nothing() -> None:
    plans = [solve_with(given, "auto") for given in (small(), replace(small(), until=time.perf_counter() + 3600))]
    assert plans[0].plan.to_json() == plans[1].plan.to_json()
    assert plans[1].ended == ""


@pytest.mark.in_turns
def test_a_search_of_minutes_ends_with_its_seconds_and_a_bound_that_holds() -> None:
    graph = gpt_graph(layers=24, hidden=1024, heads=16, sequence=512, vocabulary=32_000)
    given = problem(graph, nodes(device(), per_node=8, count=4), rows=32)
    best = solve_with(replace(given, until=time.perf_counter() + 0.5), "auto")
    longer = solve_with(replace(given, until=time.perf_counter() + 3.0), "auto")
    assert seconds(longer) <= seconds(best) * (1 + 1e-9)
    for bound in (best.bound, longer.bound):
        assert bound is None or bound <= seconds(longer) * (1 + 1e-9)


def test_the_plan_says_what_ended_its_search(capsys: pytest.CaptureFixture[str]) -> None:
    plan = solve(replace(small(), until=OVER))
    assert any("seconds of the budget are over" in note for note in plan.assumptions)
    assert "best plan so far" in capsys.readouterr().err


def test_a_complete_search_says_nothing_of_the_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("so far" in note for note in solve(small()).assumptions)
    assert capsys.readouterr().err == ""


@pytest.mark.in_turns
def test_ctrl_c_writes_the_best_plan_so_far_and_exits_0(tmp_path: Path) -> None:
    written = tmp_path / "plan.json"
    code = "import sys; from tests_interrupt import main; sys.exit(main())"
    (tmp_path / "tests_interrupt.py").write_text(INTERRUPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code, "plan", "examples.models:tiny_gpt2", "--cluster", "a100x8*4", "--batch", "64x16",
         "-o", str(written)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline().strip() == "searching"  # every baseline has been tried
        started.send_signal(signal.SIGINT)
        _, errors = started.communicate(timeout=1800)
    assert started.returncode == 0, errors
    assert "the search was interrupted: this is the best plan so far" in errors
    assert Plan.load(written).ledger is not None


# The command line with a search that says when it begins and then goes on until it is interrupted.
# A shell that starts this suite in the background makes its processes deaf to interrupts; this one listens.
INTERRUPT = """
import signal, time
from placer.__main__ import main as run
from placer.strategies.inter_op import search as stages

def endless(search):
    print("searching", flush=True)
    time.sleep(3600)

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stages._run = endless
    return run()
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("budget", [60, 300])
def test_auto_loses_to_no_baseline_on_what_branches_however_small_the_budget(budget: int) -> None:
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=10 ** (3 + i % 3)) for i in range(7)]
    graph = branching_graph(blocks, ((), (0,), (1,), (), (3,), (4,), (2, 5)), rows=8)
    given = problem(graph, cluster(*[device()] * 3))
    best = solve_with(replace(given, budget=budget), "auto")
    assert best.evaluations <= budget
    for name in ("single", "data", "sharded", "even", "megatron", "heft", "etf", "sct", "critical_path", "greedy"):
        assert seconds(best) <= seconds(solve_with(replace(given, budget=budget), name)) * (1 + 1e-9), name


@pytest.mark.in_turns
def test_moves_go_on_where_a_budget_ends_the_exact_search() -> None:
    given = replace(drawn_problem(1), budget=300)
    exact, both = solve_with(given, "stages"), solve_with(given, "auto")
    assert exact.ended == both.ended == "evaluations"
    assert both.evaluations <= 300
    assert seconds(both) < 0.5 * seconds(exact)
    assert both.bound is None or both.bound <= seconds(both)
