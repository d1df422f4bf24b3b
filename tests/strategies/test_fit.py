"""How much fits: what is found is what trying every size by hand finds; holes are looked into, or named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from clusters import FAST, cluster
from graphs import gpt_graph
from placer.api import capture
from placer.cli import app
from placer.cluster.cluster import Cluster
from placer.errors import InfeasibleError, UsageError
from placer.plans.plan import ModelRef, Plan
from placer.plans.settings import RunSettings
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.strategies.advise.fit import BEYOND, fitted, largest
from plans import two_stage_plan

MOST = 12


def machines(devices: int, mebibytes: float) -> Cluster:
    """Equal devices of little memory, without the context that takes a gibibyte."""
    small = replace(FAST, memory_bytes=int(mebibytes * 2**20), overhead_bytes=0)
    return cluster(per_node=devices, device=small)


def batch_of(rows: int, on: Cluster) -> Problem:
    return made(on, rows=rows, pins=Pins(microbatches=1))


def length_of(tokens: int, on: Cluster) -> Problem:
    return made(on, sequence=16 * tokens)


def depth_of(layers: int, on: Cluster) -> Problem:
    return made(on, layers=layers)


def made(on: Cluster, *, pins: Pins = Pins(), rows: int = 4, layers: int = 2, sequence: int = 32) -> Problem:  # noqa: B008
    return Problem(
        graph=gpt_graph(rows=rows, layers=layers, sequence=sequence), cluster=on, settings=RunSettings(), rows=rows,
        model=ModelRef(kind="module", reference="gpt", fingerprint="0"), pins=pins,
    )  # fmt: skip


def has_plan(problem: Problem) -> bool:
    """Whether a search to its end finds one."""
    try:
        solve_with(problem, "stages")
    except InfeasibleError:
        return False
    return True


CASES = [
    (batch_of, machines(1, 4)),
    (batch_of, machines(2, 1.8)),
    (length_of, machines(1, 2)),
    (length_of, machines(2, 2)),
    (depth_of, machines(1, 5)),
    (depth_of, machines(2, 3)),
]


@pytest.mark.in_turns
@pytest.mark.parametrize(("sized", "on"), CASES)
def test_the_largest_is_that_of_trying_every_size(sized, on: Cluster) -> None:  # type: ignore[no-untyped-def]
    by_hand = [size for size in range(1, MOST + 1) if has_plan(sized(size, on))]
    found = largest(lambda size: fitted(sized(size, on)), step=1, most=MOST)
    assert found.size == max(by_hand, default=0) < MOST, "a case in which memory ends before the sizes do"
    assert found.refused == found.size + 1 and "memory" in found.binding
    assert found.plan is None or found.plan.graph == sized(found.size, on).graph


def test_where_only_stages_that_recompute_some_blocks_fit_both_fit_and_plan_find_one() -> None:
    graph = capture("examples/guides/small_llama/config.json", batch="256x128")
    tight = replace(batch_of(1, machines(1, 560)), graph=graph, rows=256)
    assert not has_plan(tight), "the exact search knows stages that recompute all blocks or none"
    for plan in (fitted(tight), solve_with(tight, "auto").plan):
        assert isinstance(plan, Plan) and plan.bound is None
        assert plan.stages[0].recomputed is not None and 0 < plan.stages[0].recomputed < len(graph.blocks)


def with_holes(fitting: set[int], most: int) -> tuple[int, int | None, str]:
    """What is found where exactly these sizes fit."""
    plan = two_stage_plan()
    found = largest(lambda size: plan if size in fitting else "memory", step=1, most=most)
    return found.size, found.refused, found.unproven


@pytest.mark.parametrize("last", range(1, 40))
def test_without_holes_the_largest_is_found_wherever_it_is(last: int) -> None:
    assert with_holes(set(range(1, last + 1)), 64)[:2] == (last, last + 1)


@pytest.mark.parametrize("hole", range(2, 20))
def test_a_narrow_hole_is_looked_across(hole: int) -> None:
    fitting = set(range(1, 31)) - set(range(hole, hole + BEYOND))
    assert with_holes(fitting, 64)[:2] == (30, 31)


def test_a_wide_hole_is_not_and_that_is_said() -> None:
    size, refused, unproven = with_holes({1, 2, *range(3 + BEYOND + 1, 30)}, 64)
    assert (size, refused) == (2, 3)
    assert "all beyond 3" in unproven and "multiple" not in unproven, "every size is a multiple of 1"


def test_where_every_size_fits_the_last_one_is_given_and_nothing_is_said_to_bind() -> None:
    assert with_holes(set(range(1, 65)), 50) == (50, None, "larger ones were not asked for")
    assert with_holes(set(), 50)[:2] == (0, 1)


def test_a_step_counts_in_multiples() -> None:
    plan, asked = two_stage_plan(), []

    def attempt(size: int) -> Plan | str:
        asked.append(size)
        return plan if size <= 100 else "memory"

    found = largest(attempt, step=8, most=1000)
    assert (found.size, found.refused, found.step) == (96, 104, 8)
    assert all(size % 8 == 0 for size in asked) and len(asked) == len(set(asked))


def test_a_graph_of_other_rows_is_the_graph_captured_with_them() -> None:
    few, many = (capture("examples.models:tiny_llama", batch=f"{rows}x32") for rows in (8, 24))
    assert replace(few, rows=24) == many


def fitting(*arguments: str) -> dict[str, object]:
    ended = CliRunner().invoke(app, ["fit", "examples.models:tiny_llama", "--cluster", "t4x2", *arguments, "--json"])
    assert ended.exception is None, ended.exception
    document: dict[str, object] = json.loads(ended.stdout)
    return document


def test_the_command_captures_each_length_and_depth_anew() -> None:
    short = fitting("--grow", "length", "--batch", "2x32", "--step", "64", "--most", "64", "--strategy", "data")
    assert (short["largest"], short["refused"]) == (64, None)
    deep = fitting("--grow", "depth", "--batch", "2x32", "--step", "9", "--most", "9", "--strategy", "data")
    assert deep["largest"] == 9
    held = [one["plan"]["memory"][0]["parameters_bytes"] for one in (short, deep)]  # type: ignore[index]
    assert held[1] > held[0]


@pytest.mark.in_turns
@pytest.mark.parametrize(("pins", "step", "first"), [
    (("microbatches=8",), [], 8), (("microbatches=8", "data=2"), [], 16), (("data=2",), ["--step", "1"], 2),
    (("microbatches=3",), [], 6),
])  # fmt: skip
def test_a_batch_grows_from_the_first_size_that_pins_allow(pins: tuple[str, ...], step: list[str], first: int) -> None:
    words = [word for pin in pins for word in ("--pin", pin)]
    found = fitting("--batch", "8x32", "--most", "32", "--strategy", "stages", *step, *words)
    assert found["tried"][0] == {"size": first, "fits": True}  # type: ignore[index]
    assert found["largest"] == 32 // found["step"] * found["step"]  # type: ignore[operator]


@pytest.mark.in_turns
@pytest.mark.parametrize(("words", "part"), [
    (("--most", "1"), "--most 1 is below the first batch to be tried, 2"),
    (("--step", "4", "--pin", "microbatches=8"), "--step 4 was asked for with --pin microbatches=8"),
])  # fmt: skip
def test_sizes_that_cannot_be_are_misuse(words: tuple[str, ...], part: str) -> None:
    asked = ["fit", "examples.models:tiny_llama", "--cluster", "t4x2", "--batch", "8x32", *words]
    ended = CliRunner().invoke(app, asked)
    assert isinstance(ended.exception, UsageError) and part in str(ended.exception)
