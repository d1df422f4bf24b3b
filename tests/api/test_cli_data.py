"""`placer plan --data-set` and `placer data`: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

from commands import Command, command_in
from placer.api import capture
from placer.plans.plan import Plan
from placer.runtime.data import open_data

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


@pytest.mark.in_turns
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


def singles(folder: Path, count: int) -> Path:
    for number in range(count):
        path = folder / "files" / ("cat" if number % 2 else "dog") / f"{number:03d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        numpy.save(path, numpy.full((32, 32), number, numpy.float32))
    return folder / "files"


@pytest.mark.in_turns
@pytest.mark.parametrize("format", ["tar", "parquet", "tfrecord"])
def test_files_are_packed_measured_and_planned_for(placer: Command, tmp_path: Path, format: str) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs placer-planner[data]")
    singles(tmp_path, 60)
    command = ["data", "pack", "files", "-o", "shards", "--to", format, "--shard-size", "64KiB"]
    packed = json.loads(placer(*command, "--json").out)
    assert (packed["samples"], packed["format"]) == (60, format)
    assert packed["shards"] == len(list(Path("shards").glob(f"*.{format}"))) > 1
    for folder, kind in (("files", "single files"), ("shards", f"{format} shards")):
        command = ["data", "measure", folder, "--workers", "0,1", "--samples", "60", "-o", "made.yaml"]
        found = json.loads(placer(*command, "--json").out)
        assert found["format"] == kind
        assert found["stored_bytes"] == 128 + 32 * 32 * 4  # the header of .npy files is 128 bytes
        assert found["decoded_bytes"] == 32 * 32 * 4
        assert [one["workers"] for one in found["loaders"]] == [0, 1]
        assert all(one["samples_per_second"] > 0 for one in found["loaders"])
        path = json.loads(
            placer("data", "path", "made.yaml", "--cluster", "lab.yaml", "--rows-per-second", "10", "--json").out
        )
        assert path["stored_bytes"] == pytest.approx(60 * found["stored_bytes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pack", "none", "-o", "shards"), "none is no folder"),
        (("pack", "files", "-o", "files"), "lies in files"),
        (("pack", "files", "-o", "shards", "--shard-size", "4"), "has no unit"),
        (("pack", "files", "-o", "shards", "--to", "zip"), "zip"),
        (("pack", "files", "-o", "shards", "--shard-size", "4B"), "hold nothing"),
        (("pack", "files", "-o", "lab.yaml"), "lab.yaml"),
        (("measure", "none"), "none is no folder"),
        (("measure", "empty"), "holds no files"),
        (("measure", "files", "--workers", "many"), "--workers is 'many'"),
        (("measure", "files", "--workers=-1"), "--workers is '-1'"),
        (("measure", "files", "-o", "none/made.yaml"), "none"),
    ],
)
def test_what_cannot_be_packed_or_measured_is_said(
    placer: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    singles(tmp_path, 2)
    (tmp_path / "empty").mkdir()
    ended = placer("data", *arguments)
    assert ended.code == 2
    assert said in ended.error
    assert not Path("shards").exists() or not list(Path("shards").glob("*.tar"))


@pytest.mark.in_turns
def test_images_are_decoded_cut_and_trained_on(placer: Command, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="images need placer-planner[data]")
    for number in range(8):
        path = tmp_path / "images" / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (20 + number, 12), (30 * number, 0, 255)).save(path)
    assert placer("data", "pack", "images", "-o", "shards", "--labels").code == 0
    document = json.loads(placer("data", "measure", "images", "--workers", "0", "--pixels", "8", "--json").out)
    assert document["decoded_bytes"] == 3 * 8 * 8
    graph = capture("examples.convnet:small", batch={"images": (4, 3, 8, 8), "labels": ((4,), "int64")})
    data = open_data("shards", graph, rows=4, seed=0)
    batch = data.batch(0)
    assert batch["images"].shape == (4, 3, 8, 8)
    assert set(batch["labels"].tolist()) <= {0, 1}
    # Class 0 is cat, whose images have odd numbers: red is 30 times the number, blue full; JPEG is off by little.
    red = (batch["images"][:, 0].mean((1, 2)) * 255 / 30).round().int()
    assert torch.equal((red + 1) % 2, batch["labels"].int())
    assert batch["images"][:, 2].min() > 0.97
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "0.jpg").write_bytes(b"no image")
    ended = placer("data", "measure", "broken", "--workers", "0")
    assert (ended.code, "cannot be decoded" in ended.error) == (2, True)
