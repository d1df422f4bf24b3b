"""Shards: packed whole, read by webdataset too; every sample once an epoch, also after a kill, on other ranks."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs import BlockSpec, chain_graph
from placer.errors import UsageError
from placer.runtime.data import open_data
from placer.runtime.data.shards import ShardLoader, ShardSet, pack
from placer.runtime.data.shards.order import Place, ShardOrder

WIDTH = 16  # of the input `x` of a chain graph
HERE = Path(__file__).resolve().parents[1]


def key(files: dict[str, bytes]) -> str:
    return files["txt"].decode()


def singles(folder: Path, count: int) -> Path:
    """So many samples, a text and an array each, in two subfolders."""
    for number in range(count):
        path = folder / "singles" / ("even" if number % 2 == 0 else "odd") / f"{number:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"sample {number}")
        numpy.save(path.with_suffix(".x.npy"), numpy.full(WIDTH, number, numpy.float32))
    return folder / "singles"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """37 samples in shards of five at most."""
    return pack(singles(tmp_path, 37), tmp_path / "shards", shard_bytes=5 * 2048 + 1024, labels=True).folder


def everything(samples: ShardSet) -> Iterator[dict[str, bytes]]:
    order = ShardOrder(samples.counts, 0, hold_out=False)
    return (samples.read(order.training(index)) for index in range(order.trained))


def test_shards_are_of_the_size_asked_for_and_hold_every_file(shards: Path, tmp_path: Path) -> None:
    samples = ShardSet(shards)
    assert len(samples.counts) > 5
    assert all(one.bytes <= 10240 for one in samples.manifest.shards)  # tar files are padded to 20 blocks
    read = list(everything(samples))
    assert sorted(map(key, read)) == sorted(f"sample {number}" for number in range(37))
    assert Counter(one["cls"] for one in read) == {b"0": 19, b"1": 18}
    assert samples.manifest.classes == ("even", "odd")
    with tarfile.open(shards / samples.manifest.shards[0].name) as tar:
        first = tar.extractfile("even/0000.txt")
        assert first is not None
        assert first.read() == (tmp_path / "singles" / "even" / "0000.txt").read_bytes()


def test_the_same_files_give_the_same_bytes(shards: Path, tmp_path: Path) -> None:
    again = pack(tmp_path / "singles", tmp_path / "again", shard_bytes=5 * 2048 + 1024, labels=True).folder
    names = sorted(one.name for one in shards.iterdir())
    assert names == sorted(one.name for one in again.iterdir())
    assert all((again / name).read_bytes() == (shards / name).read_bytes() for name in names)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its files open
def test_webdataset_reads_our_shards_and_we_read_those_it_writes(shards: Path, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="the library whose format this is, is not installed")
    theirs = wds.WebDataset(sorted(map(str, shards.glob("*.tar"))), shardshuffle=False, empty_check=False)
    assert sorted(one["txt"].decode() for one in theirs) == sorted(map(key, everything(ShardSet(shards))))
    (tmp_path / "theirs").mkdir()
    with wds.ShardWriter(str(tmp_path / "theirs" / "set-%06d.tar"), maxcount=3, verbose=0) as writer:
        for number in range(8):
            writer.write({"__key__": f"{number:04d}", "txt": f"sample {number}"})
    read = everything(ShardSet(tmp_path / "theirs"))
    assert sorted(map(key, read)) == [f"sample {number}" for number in range(8)]
    gc.collect()


def test_shards_without_manifest_and_indexes_are_read_alike(shards: Path) -> None:
    before = sorted(map(key, everything(ShardSet(shards))))
    for path in [*shards.glob("*.json")]:
        path.unlink()
    assert sorted(map(key, everything(ShardSet(shards)))) == before


COUNTS = st.lists(st.integers(1, 30), min_size=1, max_size=9)


@given(COUNTS, st.integers(0, 5), st.integers(1, 12), st.booleans())
def test_an_order_visits_every_sample_once_an_epoch_whatever_the_shards(
    counts: list[int], seed: int, window: int, hold_out: bool
) -> None:
    order = ShardOrder(counts, seed, window=window, hold_out=hold_out)
    everywhere = {(shard, number) for shard, count in enumerate(counts) for number in range(count)}
    held = {(one.shard, one.number) for one in map(order.held_out, range(order.kept))}
    assert len(held) == order.kept
    for epoch in range(2):
        seen = [order.training(epoch * order.trained + index) for index in range(order.trained)]
        assert {(one.shard, one.number) for one in seen} == everywhere - held
        assert len(set(seen)) == len(seen)


@given(COUNTS, st.integers(0, 5), st.integers(1, 12))
def test_while_a_window_is_given_out_the_next_one_is_read_ahead_as_it_is_stored(
    counts: list[int], seed: int, window: int
) -> None:
    order = ShardOrder(counts, seed, window=window, hold_out=False)
    lanes, shortest = order.lanes, order.trained // order.lanes
    given_out = {lane: [order.training(index) for index in range(lane, order.trained, lanes)] for lane in range(lanes)}
    announced = {lane: [order.ahead(index) for index in range(lane, order.trained, lanes)] for lane in range(lanes)}
    for lane in range(lanes):
        for first in range(0, shortest - 2 * window + 1, window):
            read_ahead = announced[lane][first : first + window]
            assert set(read_ahead) == set(given_out[lane][first + window : first + 2 * window])
            assert all(
                one.number + 1 == after.number for one, after in pairwise(read_ahead) if one.shard == after.shard
            )


def test_a_loader_has_every_sample_read_ahead_a_window_before_it_is_needed() -> None:
    class Told:
        """Samples that say of themselves whether they were read ahead."""

        counts = (64, 64)

        def __init__(self) -> None:
            self.announced: set[Place] = set()

        def read_ahead(self, place: Place) -> None:
            self.announced.add(place)

        def read(self, place: Place) -> dict[str, bytes]:
            return {"ahead": b"yes" if place in self.announced else b"no"}

    batches = iter(ShardLoader(Told(), lambda files: files["ahead"], rows=16, window=16))
    assert [set(batch) for batch in islice(batches, 16)] == [{b"no"}] * 2 + [{b"yes"}] * 14  # two lanes


def test_epochs_and_seeds_differ() -> None:
    order = ShardOrder([20] * 10, 1)
    first, second = ([order.training(e * order.trained + i) for i in range(order.trained)] for e in range(2))
    other = ShardOrder([20] * 10, 2)
    assert first != second
    assert first != [other.training(index) for index in range(other.trained)]


def test_a_rank_of_as_many_as_there_are_lanes_reads_shards_of_its_own() -> None:
    order = ShardOrder([25] * 8, 1, hold_out=False)
    assert order.lanes == 8
    for rank in range(4):
        shards = {order.training(index).shard for index in range(rank, order.trained, 4)}
        assert len(shards) == 2


@pytest.mark.in_turns
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_of_any_number_are_given_every_sample_once(shards: Path, workers: int) -> None:
    for ranks, rows in ((1, 37), (2, 37), (3, 37)) if workers else ((1, 1), (2, 37), (3, 6), (5, 4), (4, 2)):
        steps = -(-37 // rows)
        given = []
        for rank in range(ranks):
            loader = ShardLoader(shards, key, rows=rows, rank=rank, ranks=ranks, workers=workers, window=4)
            given += [one for batch in islice(loader, steps) for one in batch]
            assert loader.seen == steps * rows
        assert len(given) == steps * rows
        assert set(given) == {f"sample {number}" for number in range(37)}
        assert max(Counter(given).values()) <= 1 + (steps * rows > 37)


def test_a_state_goes_on_with_another_number_of_ranks_rows_and_workers(shards: Path) -> None:
    order = ShardOrder(ShardSet(shards).counts, 0, window=4, hold_out=False)
    whole = [key(ShardSet(shards).read(order.training(index))) for index in range(37)]
    two = [ShardLoader(shards, key, rows=6, rank=rank, ranks=2, window=4, workers=1) for rank in range(2)]
    before = [one for loader in two for batch in islice(loader, 3) for one in batch]
    assert sorted(before) == sorted(whole[:18])
    assert two[0].state_dict() == two[1].state_dict()
    three = [ShardLoader(shards, key, rows=19, rank=rank, ranks=3, window=4) for rank in range(3)]
    after = []
    for loader in three:
        loader.load_state_dict(two[0].state_dict())
        after += next(iter(loader))
    assert sorted(after) == sorted(whole[18:])


def test_an_iterator_is_told_that_a_state_was_loaded_or_another_one_read(shards: Path) -> None:
    loader = ShardLoader(shards, key, rows=6)
    old, new = iter(loader), iter(loader)
    first = next(old)
    loader.load_state_dict(loader.state_dict() | {"seen": 0})
    with pytest.raises(UsageError, match=r"after 6 samples, its loader is after 0"):
        next(old)
    assert next(new) == first and loader.state_dict()["seen"] == 6
    with pytest.raises(UsageError, match=r"make a new one"):
        (next(iter(loader)), next(new))


def test_the_state_of_another_order_is_refused(shards: Path) -> None:
    state = ShardLoader(shards, key, rows=6, seed=1).state_dict()
    with pytest.raises(UsageError, match="is of another order"):
        ShardLoader(shards, key, rows=6, seed=2).load_state_dict(state)


def run_ranks(folder: Path, notes: Path, *, rows: int, ranks: int, workers: int, kill_after: int) -> list[int]:
    """The exit codes of so many ranks; all are killed within that step, none at 0."""
    paths = os.pathsep.join([str(HERE.parent), str(HERE / "ranks"), *filter(None, sys.path)])
    command = [sys.executable, "-m", "shard_ranks", str(folder), str(notes), str(rows)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(workers), str(kill_after)], env={**os.environ, "PYTHONPATH": paths}
        )
        for rank in range(ranks)
    ]
    return [process.wait(120) for process in started]


@pytest.mark.parametrize(("kill_after", "others"), [(3, 3), (4, 1)])
def test_ranks_killed_within_an_epoch_are_resumed_by_another_number_of_them(
    shards: Path, tmp_path: Path, kill_after: int, others: int
) -> None:
    """Of what was trained on before the last saved state, and after it by the new ranks, each sample comes once."""
    notes = tmp_path / "notes"
    notes.mkdir()
    assert run_ranks(shards, notes, rows=6, ranks=2, workers=1, kill_after=kill_after) == [-9, -9]
    (notes / "state.json").rename(notes / "begin.json")
    seen = json.loads((notes / "begin.json").read_text())["seen"]
    assert seen == 12  # of the second step; what was given since is lost with the weights it changed
    for lost in [path for path in notes.glob("*-of-2") if int(path.name[:5]) >= seen]:
        lost.unlink()
    assert run_ranks(shards, notes, rows=5, ranks=others, workers=0, kill_after=0) == [0] * others
    given = [line for path in notes.glob("*-of-*") for line in path.read_text().splitlines()]
    assert sorted(given) == sorted(f"sample {number}" for number in range(37))


def test_shards_are_a_models_inputs(shards: Path) -> None:
    data = open_data(str(shards), chain_graph((BlockSpec(),)), rows=4, seed=5)
    assert "37 samples, the last 1 held out for evaluation" in data.name
    seen = torch.cat([data.batch(k)["x"] for k in range(9)])
    assert seen.dtype == torch.float32
    assert sorted(seen[:, 0].int().tolist()) == sorted(set(range(37)) - {int(data.held_out(0)["x"][0, 0])})
    again = open_data(str(shards), chain_graph((BlockSpec(),)), rows=4, seed=5)
    assert torch.equal(data.batch(3)["x"], again.batch(3)["x"])


def test_what_cannot_be_packed_or_read_is_said(shards: Path, tmp_path: Path) -> None:
    source = tmp_path / "singles"
    with pytest.raises(UsageError, match="holds shards already"):
        pack(source, shards, shard_bytes=10**6)
    with pytest.raises(UsageError, match="lies in"):
        pack(source, source / "shards", shard_bytes=10**6)
    with pytest.raises(UsageError, match="is no folder"):
        pack(tmp_path / "none", tmp_path / "new", shard_bytes=10**6)
    (source / "README").write_text("no suffix")
    with pytest.raises(UsageError, match="has no suffix"):
        pack(source, tmp_path / "new", shard_bytes=10**6)
    first = shards / "shard-000000.tar"
    content = first.read_bytes()
    first.write_bytes(content[:3000])
    with pytest.raises(UsageError, match="has 3000 bytes, not the"):
        ShardSet(shards)
    (shards / "shards.json").unlink()
    (shards / "shard-000000.tar.index.json").unlink()
    with pytest.raises(UsageError, match=r"is cut off|cannot be read as a tar file"):
        ShardSet(shards)
    first.write_bytes(b"no tar file" * 1000)
    with pytest.raises(UsageError, match="cannot be read as a tar file"):
        ShardSet(shards)


def test_a_packing_that_was_killed_is_begun_again(tmp_path: Path) -> None:
    source, into = singles(tmp_path, 9), tmp_path / "shards"
    whole = pack(source, into, shard_bytes=6000)
    (into / "shards.json").unlink()
    (into / ".packing").write_text("")
    (into / "shard-000009.tar.part").write_bytes(b"half")
    assert pack(source, into, shard_bytes=6000) == whole
    assert not list(into.glob("*.part"))
    assert len(list(everything(ShardSet(into)))) == 9
