"""`placer plan --data-set` and `placer data path`: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import Command, command_in
from placer.plans.plan import Plan

LAB = """
name: lab
storage: {use: hdd, random_read: 20 MB/s, nic: 1gbe}
nodes:
  - {name: node, devices: [{kind: h100, count: 2}], link: nvlink4, cores: 8, memory: 1 GiB, nic: 10gbe}
"""
IMAGES = "name: images\nsamples: 1000000\nstored: 100 kB\ndecoded: 400 kB\ndecode: 4 ms\nread: at_random\n"


@pytest.fixture
def placer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "lab.yaml").write_text(LAB)
    (tmp_path / "images.yaml").write_text(IMAGES)
    return command_in(tmp_path, monkeypatch, capsys)


def test_a_plan_with_a_data_set_names_the_bottleneck_and_waits_in_its_ledger(placer: Command) -> None:
    command = ["plan", "bad_models:tiny", "--cluster", "lab.yaml", "--batch", "8x32", "--strategy", "data"]
    alone = json.loads(placer(*command, "--json").out)
    ended = placer(*command, "--data-set", "images.yaml", "-o", "plan.json")
    assert ended.code == 0
    assert "bottleneck: disks of shared storage" in ended.out
    assert "helps: shards that are read in sequence" in ended.out
    fed = json.loads(placer(*command, "--data-set", "images.yaml", "--json").out)
    path = fed["data_path"]
    assert path["samples_per_second"] == pytest.approx(20e6 / 100e3)
    assert fed["rows_per_second"] == pytest.approx(path["samples_per_second"])
    assert fed["step_time_seconds"] == pytest.approx(8 / 200)
    waited = fed["step_time_seconds"] - alone["step_time_seconds"]
    assert fed["time"]["data_seconds"] == pytest.approx(waited)
    saved = Plan.load("plan.json").ledger
    assert saved is not None
    assert saved.seconds.data == pytest.approx(waited)


def test_the_path_of_machines_alone(placer: Command) -> None:
    document = json.loads(
        placer("data", "path", "images.yaml", "--cluster", "lab.yaml", "--rows-per-second", "50", "--json").out
    )
    assert document["share"] == 1
    assert document["bottleneck"] == "devices"
    needs = {f"{one['kind']} of {one['where']}": one["needed_per_node"] for one in document["resources"]}
    assert needs == {
        "disks of shared storage": 1,  # 10 of 20 MB/s
        "network cards of shared storage": 1,
        "network cards of node": 1,
        "cores of node": 1,  # 100 x 4 ms
    }
    assert document["notes"] == [
        "node: the way from host memory to its devices is not described, and taken not to bind"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("samples: 5", "images.yaml, line 1: stored is missing; add it"),
        (f"{IMAGES}speed: 3\n", "line 7: speed is no field placer knows"),
        (IMAGES.replace("100 kB", "100"), "line 3: stored: 100 has no unit"),
        (IMAGES.replace("100 kB", "100 kB/s"), "unknown unit"),
        (IMAGES.replace("1000000", "0"), "line 2: samples"),
        (IMAGES.replace("1000000", "many"), "line 2: samples"),
        (IMAGES.replace("at_random", "backwards"), "line 6: read"),
        (IMAGES.replace("decode: 4 ms\n", ""), "nothing says how long a core takes for it; add decode"),
        (IMAGES.replace("4 ms", "-4 ms"), "line 5: decode"),
        ("- a\n", "expected fields such as"),
        ("", "an empty file"),
        (IMAGES + "where: nearby\n", "line 7: where"),
        (IMAGES + "prices: {disk: -3}\n", "prices.disk"),
    ],
)
def test_a_data_set_file_that_is_wrong_is_refused_by_line(placer: Command, text: str, said: str) -> None:
    Path("images.yaml").write_text(text)
    ended = placer("data", "path", "images.yaml", "--cluster", "lab.yaml", "--rows-per-second", "50")
    assert ended.code == 2
    assert said in ended.error


def test_what_is_not_there_is_said(placer: Command) -> None:
    missing = placer("data", "path", "none.yaml", "--cluster", "lab.yaml", "--rows-per-second", "50")
    assert (missing.code, "none.yaml" in missing.error) == (2, True)
    Path("images.yaml").write_text(IMAGES + "where: shared\n")
    nowhere = placer("data", "path", "images.yaml", "--cluster", "h100x8", "--rows-per-second", "50")
    assert nowhere.code == 2
    assert "lies on shared storage, which" in nowhere.error
    for rate in ("0", "-3", "nan", "inf"):
        ended = placer("data", "path", "images.yaml", "--cluster", "lab.yaml", f"--rows-per-second={rate}")
        assert (ended.code, "give a number above 0" in ended.error) == (2, True)
