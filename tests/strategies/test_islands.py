"""Islands of `genetic`: the same plan wherever they evolve, within one budget, and from where a killed search was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Command, command_in
from graphs import BlockSpec, branching_graph, chain_graph
from placer.api import replan, solve
from placer.errors import Infeasible, UsageError
from placer.legality import check
from placer.plans.plan import Plan
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem, Solution, strategy
from placer.search.progress import Progress
from placer.strategies import background
from placer.strategies.genetic import population
from placer.strategies.genetic.islands import begun
from placer.strategies.moves.walk import Walk
from placer.strategies.policy.drawn import LARGER, drawn_problem
from problems import cluster, device, problem

pytestmark = pytest.mark.in_turns

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 1200


@pytest.fixture(autouse=True)
def _short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several in a small budget."""
    monkeypatch.setattr(population, "EPOCH", 60)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_in(tmp_path, monkeypatch, capsys)


def small(budget: int | None = BUDGET, islands: int | None = 3, resume: Path | None = None) -> Problem:
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=1000 * (i + 1)) for i in range(5)]
    chips = (device(), device(), device(rate=4e11, name="slower"), device(rate=4e11, name="slower"))
    given = problem(chain_graph(blocks, rows=6), cluster(*chips))
    return replace(given, budget=budget, islands=islands, resume=resume)


def large(budget: int | None = BUDGET, islands: int | None = 3) -> Problem:
    """One whose best plan is not found at once: 28 blocks on unlike devices."""
    return replace(drawn_problem(0, LARGER), budget=budget, islands=islands)


def branching(budget: int | None = BUDGET, islands: int | None = 3) -> Problem:
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=10 ** (3 + i % 3)) for i in range(7)]
    graph = branching_graph(blocks, ((), (0,), (1,), (), (3,), (4,), (2, 5)), rows=8)
    return replace(problem(graph, cluster(*[device()] * 3)), budget=budget, islands=islands)


def found(given: Problem) -> Solution:
    made = strategy("genetic").solve(given)
    assert isinstance(made, Solution)
    return made


def told(made: Solution) -> tuple[str, object, int, str]:
    return made.plan.to_json(), made.alternatives, made.evaluations, made.ended


@pytest.mark.parametrize(("make", "islands"), [(small, 1), (small, 2), (small, 5), (large, 3), (branching, 3)])
def test_the_plan_is_the_same_with_other_processes_and_without(
    make: Callable[[int, int], Problem], islands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for cores in (0, 2):
        monkeypatch.setattr(background, "_other_cores", lambda cores=cores: cores)
        results.append(told(found(make(BUDGET, islands))))
    assert results[0] == results[1]


@pytest.mark.parametrize(("budget", "count"), [(None, 1), (15_999, 1), (16_000, 4)])
def test_a_budget_without_a_number_of_islands_has_those_it_is_good_for(budget: int | None, count: int) -> None:
    assert len(begun(Walk(small(budget, islands=None))).islands) == count


def test_another_number_of_islands_is_another_search() -> None:
    assert len({found(small(islands=islands)).alternatives for islands in (1, 2, 3)}) == 3


def test_who_listens_hears_of_the_best_plan_wherever_it_was_found() -> None:
    listening = Progress()
    made = found(replace(large(), progress=listening))
    assert made.plan.ledger is not None
    assert listening.curve[-1][1] == pytest.approx(made.plan.ledger.step_seconds)


@pytest.mark.parametrize("islands", [1, 2, 7])
@pytest.mark.parametrize("budget", [7, 50, 333, 1200])
def test_islands_share_one_budget(budget: int, islands: int) -> None:
    made = found(small(budget, islands))
    assert made.evaluations == budget
    assert made.ended == "evaluations"
    assert not check(made.plan)


def test_islands_that_rest_leave_their_share_to_the_others_and_then_end() -> None:
    made = found(small(budget=None, islands=4))
    assert made.ended == ""
    assert made.evaluations <= 5_000
    tiny = problem(chain_graph([BlockSpec()] * 2, rows=1), cluster(device()))
    few = found(replace(tiny, budget=10**6, islands=3))
    assert few.evaluations < 10**4


def test_islands_lose_to_no_baseline_and_have_a_front() -> None:
    made = found(small())
    for name in ("single", "data", "sharded", "even", "megatron"):
        baseline = solve_with(small(islands=None), name).plan.ledger
        assert baseline is not None
        assert made.plan.ledger is not None
        assert made.plan.ledger.step_seconds <= baseline.step_seconds * (1 + 1e-9)
    assert len(made.alternatives) > 1
    assert all(" instead of " in entry.reason for entry in made.alternatives)


def test_what_fits_on_no_island_says_what_binds(tmp_path: Path) -> None:
    huge = chain_graph([BlockSpec(), BlockSpec(parameters=2**32)], rows=2)
    given = problem(huge, cluster(device(memory=2**30), device(memory=2**30)))
    given = replace(given, islands=3, budget=300, resume=tmp_path / "search.json")
    first, again = strategy("genetic").solve(given), strategy("genetic").solve(given)
    assert isinstance(first, Infeasible)
    assert "GiB too much" in first.binding
    assert again == first


@pytest.mark.parametrize("make", [small, large, branching])
def test_a_search_that_is_kept_finds_what_another_finds(make: Callable[[], Problem], tmp_path: Path) -> None:
    kept = replace(make(), resume=tmp_path / "search.json")
    alone = told(found(make()))
    assert told(found(kept)) == alone
    assert told(found(kept)) == alone, "a finished search asked again"


@pytest.mark.parametrize(("epoch", "cores"), [(1, 0), (2, 1), (3, 0)])
def test_a_killed_search_that_goes_on_ends_as_one_that_was_not(epoch: int, cores: int, tmp_path: Path) -> None:
    (tmp_path / "killed_search.py").write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "made"), str(tmp_path)])}

    def run(name: str, killed_in: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "killed_search", name, str(killed_in), str(cores)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    killed = run("killed", epoch)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = json.loads((tmp_path / "killed.search").read_text())["state"]
    assert left["epoch"] == epoch - 1
    assert left["evaluations"] < 1200
    assert not (tmp_path / "killed.json").exists()
    again = run("killed", 0)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "whole.json").read_text()
    assert (tmp_path / "killed.search").read_text() == (tmp_path / "whole.search").read_text()


# A search that dies in the middle of an epoch, islands in other processes or not.
KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from graphs import BlockSpec, chain_graph
from placer.api import solve
from placer.strategies import background
from placer.strategies.genetic import islands, population
from placer.strategies.moves.walk import Walk
from problems import cluster, device, problem

name, last, cores = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
background._other_cores = lambda: cores
population.EPOCH = 60
in_shares, tried, mine, epoch, looked = islands.in_shares, Walk.tried, os.getpid(), 0, 0

def counted(*arguments):
    global epoch, looked
    epoch, looked = epoch + 1, 0
    return in_shares(*arguments)

def dying(walk, plan):
    global looked
    looked += 1
    if epoch == last and looked == 40 and os.getpid() == mine:
        os.kill(mine, signal.SIGKILL)
    return tried(walk, plan)

islands.in_shares, Walk.tried = counted, dying
blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=1000 * (i + 1)) for i in range(5)]
chips = (device(), device(), device(rate=4e11, name="slower"), device(rate=4e11, name="slower"))
given = replace(problem(chain_graph(blocks, rows=6), cluster(*chips)), budget=1200, islands=3)
solve(replace(given, resume=Path(name + ".search")), "genetic").save(name + ".json")
"""


def test_a_kept_search_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    given = replace(large(budget=300), resume=tmp_path / "search.json")
    first = found(given)
    more = found(replace(given, budget=900))
    assert (first.evaluations, more.evaluations) == (300, 900)
    assert first.plan.ledger is not None
    assert more.plan.ledger is not None
    assert more.plan.ledger.step_seconds <= first.plan.ledger.step_seconds


def test_a_kept_search_has_the_islands_it_was_begun_with(tmp_path: Path) -> None:
    given = small(islands=2, resume=tmp_path / "search.json")
    first = found(given)
    assert told(found(replace(given, islands=None))) == told(first)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 5}, "the seed"),
        ({"islands": 2}, "the number of islands"),
        ({"pins": Pins(pipeline=2)}, "the pins"),
        ({"cluster": cluster(*[device()] * 4)}, "the cluster"),
        ({"graph": chain_graph([BlockSpec()] * 5, rows=6)}, "the model or its batch"),
        ({"settings": replace(small().settings, optimizer="sgd")}, "the settings"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_file_of_another_search_is_refused_naming_what_differs(
    change: dict[str, object], named: str, tmp_path: Path
) -> None:
    given = small(budget=100, resume=tmp_path / "search.json")
    found(given)
    before = (tmp_path / "search.json").read_text()
    with pytest.raises(UsageError, match=named):
        solve_with(replace(given, **change), "genetic")  # type: ignore[arg-type]
    assert (tmp_path / "search.json").read_text() == before


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "no JSON"), ("[]", "no format"), ('{"schema_version": 2}', "no format"),
     ('{"format": 99, "state": {}}', "its format is 99"), ('{"format": 1, "state": {}}', "somebody changed it")],
)  # fmt: skip
def test_what_keeps_no_search_is_refused_and_left_as_it_is(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=named):
        solve_with(small(resume=path), "genetic")
    assert path.read_text() == text


def test_a_kept_search_that_somebody_has_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    found(small(budget=100, resume=path))
    path.write_text(path.read_text().replace('"evaluations": 100', '"evaluations": 10'))
    with pytest.raises(UsageError, match="somebody changed it"):
        solve_with(small(budget=100, resume=path), "genetic")


@pytest.mark.parametrize("islands", [0, -1, 101])
def test_islands_that_a_budget_has_no_plan_for_are_refused(islands: int) -> None:
    with pytest.raises(UsageError, match=f"{islands} islands and 100 evaluations .*from 1 to 100"):
        solve_with(small(budget=100, islands=islands), "genetic")


def test_a_strategy_without_islands_says_which_has_them(tmp_path: Path) -> None:
    for given in (small(), small(islands=None, resume=tmp_path / "search.json")):
        with pytest.raises(UsageError, match=r"'auto'.*genetic"):
            solve_with(given, "auto")


def test_planning_again_has_as_many_islands(tmp_path: Path) -> None:
    plan = solve(small(budget=200), "genetic")
    assert Plan.from_json(plan.to_json()).asked.islands == 3
    assert '"islands"' not in solve(small(budget=200, islands=None), "genetic").to_json()
    fewer = cluster(device(), device())
    assert replan(plan, fewer).asked.islands == 3
    assert replan(plan, fewer, strategy="local").asked.islands is None


def test_an_interrupt_leaves_the_best_plan_so_far_and_the_search_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small(resume=tmp_path / "search.json")
    whole = told(found(small()))
    made = background.in_shares
    asked: list[int] = []

    def interrupted(*arguments: object) -> object:
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return made(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("placer.strategies.genetic.islands.in_shares", interrupted)
        early = found(given)
    assert early.ended == "interrupt"
    assert early.evaluations < BUDGET
    assert told(found(given)) == whole


def test_the_command_line_keeps_a_search_and_goes_on(command: Command) -> None:
    asked = ("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "8x32", "--budget", "120")
    genetic = (*asked, "--strategy", "genetic", "--islands", "2", "--resume", "search.json")
    assert command(*genetic, "-o", "first.json").code == 0
    assert command(*genetic, "-o", "again.json").code == 0
    assert Path("first.json").read_text() == Path("again.json").read_text()
    ended = command(*genetic, "--seed", "3")
    assert ended.code == 2
    assert "the seed" in ended.error
    ended = command(*genetic, "--for", "megatron")
    assert ended.code == 2
    assert "leave the file out" in ended.error


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--islands", "2"), "ask for the strategy genetic"),
        (("--resume", "search.json", "--strategy", "local"), "ask for the strategy genetic"),
        (("--strategy", "genetic", "--islands", "0"), "0 islands"),
        (("--strategy", "genetic", "--resume", "nowhere/search.json"), "does not exist"),
        (("--strategy", "genetic", "--resume", "."), "it is a folder"),
        (("--strategy", "genetic", "--resume", "-"), "name a file"),
    ],
)
def test_misuse_is_refused_before_the_model_is_captured(
    wrong: tuple[str, ...], words: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placer.tracer.capture", None)
    ended = command("plan", "bad_models:tiny", "--cluster", "small.yaml", *wrong)
    assert ended.code == 2
    assert words in ended.error
