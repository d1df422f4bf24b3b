"""Shards behind URLs: an S3 server of this machine and fsspec's memory give what the local folder gives."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from commands import Command, command_in
from graphs import BlockSpec, chain_graph
from placer.errors import ExecutionError, UsageError
from placer.runtime.data import open_data
from placer.runtime.data.shards import ShardLoader, ShardSet
from placer.runtime.data.shards.folders import blocks, url
from placer.runtime.data.shards.folders.blocks import BlockCache
from placer.runtime.data.shards.formats import FORMATS, FormatName
from placer.runtime.data.shards.order import Place
from shard_samples import COUNT, everything, key, packed, singles

# Connections of s3fs are closed by the collector, long after the test that opened them.
pytestmark = [pytest.mark.in_turns, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
fsspec = pytest.importorskip("fsspec", reason="URLs need placer-planner[data]")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return singles(tmp_path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "placer" / "shards"


@pytest.fixture
def placer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_in(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server, which lives as long as this file's tests."""
    pytest.importorskip("s3fs", reason="s3:// needs placer-planner[data]")
    moto = pytest.importorskip(
        "moto.server", reason="the S3 server, moto[server], is not installed", exc_type=ImportError
    )
    started = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket that is reached as users reach theirs: by the environment."""
    known = {
        "ENDPOINT_URL": server,
        "ACCESS_KEY_ID": "me",
        "SECRET_ACCESS_KEY": "secret",
        "DEFAULT_REGION": "us-east-1",
    }
    for name, value in known.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    system, _ = fsspec.url_to_fs("s3://shards")
    if not system.exists("s3://shards"):
        system.mkdir("shards")
    return "s3://shards"


@pytest.fixture(params=["memory", "s3"])
def far(request: pytest.FixtureRequest) -> str:
    """A folder far away, empty."""
    where = request.getfixturevalue("bucket") if request.param == "s3" else "memory://shards"
    system, path = fsspec.url_to_fs(f"{where}/train")
    if system.exists(path):
        system.rm(path, recursive=True)
    return f"{where}/train"


def put(folder: Path, far: str) -> str:
    """The files of a folder, far away."""
    system, path = fsspec.url_to_fs(far)
    for file in folder.iterdir():
        system.pipe(f"{path}/{file.name}", file.read_bytes())
    return far


@pytest.mark.parametrize("format", FORMATS)
def test_samples_from_afar_are_those_of_the_folder(
    source: Path, far: str, format: FormatName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url, "BLOCK", 1000)  # so that samples lie across blocks
    folder = packed(source, format)
    near, away = ShardSet(folder), ShardSet(put(folder, far))
    assert away.manifest == near.manifest
    assert everything(away) == everything(near)
    graph = chain_graph((BlockSpec(),))
    one, other = (open_data(str(where), graph, rows=4, seed=5) for where in (folder, far))
    assert all(torch.equal(one.batch(step)["x"], other.batch(step)["x"]) for step in range(3))
    system, path = fsspec.url_to_fs(far)
    for name in (file.name for file in folder.iterdir() if file.name.endswith((".json", ".index"))):
        system.rm(f"{path}/{name}")
    assert everything(ShardSet(far)) == everything(near)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_on_shards_from_afar_goes_on_on_other_ranks(source: Path, far: str, workers: int) -> None:
    put(packed(source, "tar"), far)
    two = [ShardLoader(far, key, rows=6, rank=rank, ranks=2, window=4, workers=workers) for rank in range(2)]
    given = [one for loader in two for batch in islice(loader, 3) for one in batch]
    for rank in range(3):
        loader = ShardLoader(far, key, rows=COUNT - 18, rank=rank, ranks=3, window=4, workers=workers)
        loader.load_state_dict(two[0].state_dict())
        given += next(iter(loader))
    assert Counter(given) == Counter(f"sample {number}" for number in range(COUNT))


def test_what_was_fetched_is_kept_until_it_changes(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far, fetched = put(packed(source, "tar"), "memory://kept/train"), list[tuple[str, int | None, int | None]]()
    system, path = fsspec.url_to_fs(far)
    real = type(system).cat_file

    def counted(self: object, path: str, start: int | None = None, end: int | None = None) -> bytes:
        fetched.append((path, start, end))
        content: bytes = real(self, path, start, end)
        return content

    monkeypatch.setattr(type(system), "cat_file", counted)
    first = everything(ShardSet(far))
    assert len(set(fetched)) == len(fetched) == len(system.ls(path))  # shards, indexes, manifest: smaller than a block
    fetched.clear()
    assert everything(ShardSet(far)) == first
    assert not fetched
    block = next(file for file in cache.glob("*/0") if file.stat().st_size > 9000)
    block.write_bytes(block.read_bytes()[:600])  # as when the machine went down
    assert everything(ShardSet(far)) == first
    assert len(fetched) == 1
    samples = ShardSet(far)
    samples.drop([Place(0, 0)])
    samples.read(Place(0, 0))
    assert len(fetched) == 2
    shard = f"{path}/{samples.manifest.shards[0].name}"
    system.pipe(shard, real(system, shard).replace(b"sample 0", b"another "))
    assert key(ShardSet(far).read(Place(0, 0))) == "another "


def test_the_cache_keeps_no_more_than_it_may(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "EVERY", 1)
    monkeypatch.setattr(blocks, "BLOCK", 100)
    kept = BlockCache(most=500)
    for number in range(20):
        assert kept.read("file", number, 10, 30, lambda: bytes(range(100))) == bytes(range(10, 30))
    sizes = [path.stat().st_size for path in cache.glob("*/*")]
    assert 300 <= sum(sizes) <= 500
    (cache / "file").write_text("")
    nowhere = BlockCache(cache / "file")
    assert nowhere.read("file", 0, 0, 3, lambda: b"abcd") == b"abc"


def test_shards_in_a_bucket_are_measured(source: Path, bucket: str, placer: Command) -> None:
    far = put(packed(source, "tar"), f"{bucket}/measured")
    command = ["data", "measure", far, "--workers", "0,1", "--samples", "30", "-o", "made.yaml"]
    found = json.loads(placer(*command, "--json").out)
    assert (found["folder"], found["format"], found["samples"]) == (far, "tar shards", COUNT)
    assert all(one["samples_per_second"] > 0 for one in found["loaders"])
    assert "name: measured" in Path("made.yaml").read_text()
    assert "read: in_sequence" in Path("made.yaml").read_text()


def test_a_bucket_that_is_not_there_is_said(bucket: str, placer: Command) -> None:
    fsspec.url_to_fs(bucket)[0].pipe(f"{bucket}/alone/notes.md", b"no shard")
    for where, said in (
        ("s3://no-such-bucket/train", "s3://no-such-bucket/train is not there: no such bucket or folder"),
        (f"{bucket}/nothing", "is not there: no such bucket or folder"),
        (f"{bucket}/alone", "holds no shards with samples"),
        (f"{bucket}/alone/notes.md", "is a file; give the folder"),
    ):
        ended = placer("data", "measure", where)
        assert (ended.code, said in ended.error) == (2, True), ended.error


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nowhere://shards", "give a folder, or a URL that fsspec knows, such as s3://bucket/folder"),
        ("memory://nothing/here", "is not there: no such bucket or folder"),
        ("file:///nothing/here", "is no folder"),
    ],
)
def test_urls_that_name_nothing_are_said(placer: Command, where: str, said: str) -> None:
    ended = placer("data", "measure", where)
    assert (ended.code, said in ended.error) == (2, True), ended.error
    with pytest.raises(UsageError, match="is no folder" if where.startswith("file") else said):
        open_data(where, chain_graph((BlockSpec(),)), rows=4, seed=5)


def test_without_s3fs_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, placer: Command) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setattr(sys.modules["fsspec.registry"], "registry", {})  # what was imported before
    ended = placer("data", "measure", "s3://shards/train")
    assert (ended.code, "pip install 'placer-planner[data]'" in ended.error) == (2, True), ended.error


def test_a_shard_that_cannot_be_fetched_is_named(source: Path) -> None:
    far = put(packed(source, "tar"), "memory://lost/train")
    samples = ShardSet(far)
    system, path = fsspec.url_to_fs(far)
    system.rm(f"{path}/{samples.manifest.shards[1].name}")
    with pytest.raises(ExecutionError, match=r"memory://lost/train/shard-000001\.tar cannot be read"):
        samples.read(Place(1, 0))
