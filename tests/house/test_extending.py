"""What the README says one may add, added: each example of examples/extending does what its paragraph promises."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import placer
from commands import CLUSTER
from examples.extending import operator, placement_format, schedule
from placer.errors import UsageError
from placer.placement.formats import READERS, PlaceRequest, read_problem
from placer.placement.solvers import PLACERS, place
from placer.plans.schedule import actions, in_flight, violations


@pytest.fixture
def devices(checkout: Path) -> str:
    return str(checkout / "examples" / "extending" / "devices.yaml")


def test_an_operator_of_ones_own_is_counted_and_cut(devices: str) -> None:
    plan = placer.plan("examples.extending.operator:build", devices, batch={"x": (8, 256, 512)}, pins=("tensor=2",))
    counted = [op.forward_flops.at(8) for _, op in plan.graph.ops if "shifted" in op.target]
    assert counted == [2 * 8 * 256 * 512 * 2048] * 2
    (layout,) = plan.layouts
    chosen = [choice for split in layout.splits if split for choice in split.choices]
    assert {"out", "hidden"} <= set(chosen)


@pytest.mark.in_turns
def test_a_plan_that_cuts_an_operator_of_ones_own_equals_one_device(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(CLUSTER)
    batch = {"x": (2, 8, 512)}
    plan = placer.plan(
        "examples.extending.operator:build", str(tmp_path / "small.yaml"), batch=batch, pins=("tensor=2",)
    )
    plan.save(tmp_path / "plan.json")
    command = [sys.executable, "-m", "placer", "verify", str(tmp_path / "plan.json"), "--steps", "1", "--json"]
    verified = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=1800)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["passed"]


def test_a_model_that_is_given_need_not_be_found_by_its_reference(devices: str) -> None:
    model = operator.build()
    plan = placer.plan("examples.extending.operator:build", devices, batch={"x": (2, 8, 512)}, pins=("tensor=2",))
    elsewhere = replace(plan, model=replace(plan.model, reference="nowhere.to_be_found:build"))
    with pytest.raises(UsageError, match="torchrun"):
        placer.runtime.load(elsewhere, model)
    with pytest.raises(UsageError, match="nowhere"):
        placer.runtime.load(elsewhere)


@pytest.mark.in_turns
def test_a_strategy_of_ones_own_comes_by_entry_point(
    devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "halves-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[placer.strategies]\nhalves = examples.extending.strategy:Halves\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    batch = {"input_ids": (8, 64), "labels": (8, 64)}
    plan = placer.plan("examples.gpt:build", devices, batch=batch, strategy="halves")
    assert (plan.strategy, len(plan.stages)) == ("halves", 2)
    assert plan.ledger is not None


def test_a_schedule_of_ones_own_is_judged() -> None:
    pairs = schedule.pairs(positions=3, microbatches=6)
    assert violations(pairs, stages=3, microbatches=6) == ()
    assert max(in_flight(pairs)) == 2 < max(in_flight(actions("gpipe", 3, 3, 6)))
    backwards_first = tuple(line[::-1] for line in pairs)
    assert violations(backwards_first, stages=3, microbatches=6)


def test_the_schedule_says_so_itself(checkout: Path) -> None:
    command = [sys.executable, "-m", "examples.extending.schedule"]
    printed = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True, timeout=1800).stdout
    assert "broken rules: none" in printed


def test_a_device_of_ones_own_is_planned_for(devices: str) -> None:
    cluster = placer.Cluster.load(devices)
    assert cluster.size == 2 * 4
    assert {device.name for device in cluster.devices} == {"accelerator"}


def test_a_format_of_ones_own_is_read_and_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "lines", placement_format.READER)
    monkeypatch.setitem(PLACERS, "lines", placement_format.PLACER)
    path = tmp_path / "graph.txt"
    path.write_text("embed 0.5 0\nlayer 0.25 0 embed\nhead 0.75 0 layer\n")
    request = PlaceRequest(devices=2)
    answer = place(read_problem(path, request, format="lines"), request)
    assert answer.objective == pytest.approx(0.5 + 0.25)
    path.write_text("embed 0.5 0\nlayer 0.25 0 nothing\n")
    with pytest.raises(UsageError, match="line 2"):
        read_problem(path, request, format="lines")
