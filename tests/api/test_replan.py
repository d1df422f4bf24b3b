"""Planning again for changed machines, and going on there from the checkpoint."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import weight_ranks
from examples.parity import models as parity_models
from examples.parity.processes import processes
from placer.api import plan as make_plan
from placer.api import replan
from placer.cli import main
from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.report.replan import state_moved
from placer.search.asked import parse_pins, pin_texts
from pool import on_ranks

pytestmark = pytest.mark.in_turns

SETTINGS = RunSettings(precision="float64", learning_rate=0.01)
MACHINES = """
name: {name}
nodes:
  - name: here
    count: {nodes}
    devices: [{{kind: h100, count: {each}}}]
    link: nvlink4
    nic: ib-ndr
    storage: {{latency: 1 ms, read: 2 GB/s, write: 1 GB/s}}
network:
  - {{name: fabric, link: ib-ndr}}
"""


def planned(cluster: Cluster | str, *pins: str) -> Plan:
    return make_plan(
        "examples.parity.models:words", cluster, batch=dict(parity_models.TEXT), settings=SETTINGS, pins=pins, seed=3
    )


def test_what_was_asked_for_is_recorded_and_asked_again() -> None:
    old = planned(processes(2), "pipeline=2", "schedule=gpipe")
    assert Plan.from_json(old.to_json()).asked.pins == ("pipeline=2", "schedule=gpipe")
    new = replan(old, processes(4))
    assert (new.model, new.settings, new.rows, new.seed, new.asked) == (
        old.model, old.settings, old.rows, 3, old.asked
    )  # fmt: skip
    assert len(new.stages) == 2 and new.schedule == "gpipe" and new.cluster.size == 4
    assert new == planned(processes(4), "pipeline=2", "schedule=gpipe")


def test_pins_read_back_as_they_are_written() -> None:
    graph = planned(processes(2)).graph
    texts = ("data=2", "pipeline=2", "recompute=no", f"{graph.blocks[0].name}@stage=0")
    pins = parse_pins(texts, graph)
    assert parse_pins(pin_texts(pins), graph) == pins


def test_pins_that_the_new_machines_cannot_keep_are_named() -> None:
    old = planned(processes(2), "pipeline=2")
    with pytest.raises(UsageError, match="pipeline=2 contradicts the cluster"):
        replan(old, processes(1))
    assert len(replan(old, processes(1), pins=()).stages) == 1


def test_the_time_to_load_is_that_of_the_node_that_reads_most(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(MACHINES.format(name="one", nodes=1, each=2))
    plan = planned(str(tmp_path / "one.yaml"), "data=2")
    assert plan.ledger is not None
    own = plan.ledger.memory[0].parameters + plan.ledger.memory[0].optimizer
    moving = state_moved(plan)
    assert moving.bytes == moving.fullest == 2 * own
    assert moving.seconds == pytest.approx(1e-3 + 2 * own / 2e9)
    (node, count), *_ = plan.cluster.groups
    assert node.storage is not None
    four = replace(node, storage=replace(node.storage, disks=4))
    wide = replace(plan, cluster=replace(plan.cluster, groups=((four, count),)))
    assert state_moved(wide).seconds == pytest.approx(1e-3 + 2 * own / (4 * 2e9))
    assert state_moved(planned(processes(2))).seconds is None


def called(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["placer", *arguments])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_run_goes_on_under_the_new_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = planned(processes(1))
    old.save(tmp_path / "plan.json")
    losses = on_ranks(1, weight_ranks.save, old, str(tmp_path / "ckpt"))[0]
    (tmp_path / "two.yaml").write_text(MACHINES.format(name="two", nodes=2, each=1))
    arguments = ["--cluster", str(tmp_path / "two.yaml"), "--checkpoint", str(tmp_path / "ckpt"), "--json"]
    assert called("replan", str(tmp_path / "plan.json"), *arguments, monkeypatch=monkeypatch) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 2 and "cluster" in told["changes"] and told["moving_seconds"] > 0
    assert Plan.load(told["plan"]).cluster.name == "two"
    new = replan(old, processes(2))
    for found in on_ranks(new.world_size, weight_ranks.resume, new, (str(tmp_path / "ckpt"),)):
        assert found[0] == pytest.approx(losses, rel=1e-9)


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(processes(2)).save(tmp_path / "plan.json")
    arguments = ["--cluster", "h100x8", "--checkpoint", str(tmp_path)]
    assert called("replan", str(tmp_path / "plan.json"), *arguments, monkeypatch=monkeypatch) == 2
    assert "holds no complete checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "plan.new.json").exists()
