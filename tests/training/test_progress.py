"""Ranks that wait for each other's disks: progress is waited for however slow it is, silence is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.state_dict_saver import save

from placer.errors import ExecutionError
from placer.runtime.checkpoint.writer import PIECE_BYTES, CheckpointWriter
from placer.runtime.distributed.faults import Terminated
from placer.runtime.distributed.progress import Turns
from placer.runtime.distributed.world import World

PATIENCE, SECONDS = 10.0, 1800.0
ENOUGH = threading.Event()
Deed = Callable[[Turns], object]


def together(deeds: list[Deed], *, first: bool = False) -> list[object]:
    """What each rank's part in a turn gives or raises; ranks are threads."""
    store, found = HashStore(), list[object]([None] * len(deeds))

    def rank(number: int) -> None:
        turns = Turns(store, World(rank=number, size=len(deeds), device=torch.device("cpu")), PATIENCE)
        deed = deeds[number]
        try:
            if first:
                turns.first(lambda: deed(turns))
            else:
                found[number] = turns.all(lambda: deed(turns))
        except ExecutionError as error:
            found[number] = error

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(len(deeds))]
    ENOUGH.clear()
    for thread in threads:
        thread.start()
    for thread, deed in zip(threads, deeds, strict=True):
        if deed is not silent:
            thread.join(SECONDS)
    ENOUGH.set()
    return found


def slow(turns: Turns) -> str:
    """Takes three times the patience, a little at a time."""
    for _ in range(30):
        time.sleep(PATIENCE / 10)
        turns.tick()
    return "written"


def silent(turns: Turns) -> str:
    """Begins, and does nothing until all others have ended."""
    ENOUGH.wait(SECONDS)
    return "too late"


def full(turns: Turns) -> str:
    """A disk that is full."""
    raise OSError("No space left on device")


def quick(turns: Turns) -> str:
    """Done at once."""
    return "written"


def test_a_slow_rank_is_waited_for() -> None:
    assert together([quick, slow, quick]) == ["written"] * 3


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_silent_rank_is_named_by_every_other_one(ranks: int) -> None:
    found = together([silent, *[quick] * (ranks - 1)])
    assert all(isinstance(error, ExecutionError) for error in found[1:])
    assert {str(error).split(" did not")[0] for error in found[1:]} == {"rank 0"}


def test_ranks_that_nobody_but_a_neighbour_watches_are_named_too() -> None:
    found = together([quick, quick, quick, silent, quick, quick])
    assert all("rank 3 did not answer: it hangs" in str(error) for rank, error in enumerate(found) if rank != 3)


def test_what_one_rank_fails_with_reaches_all() -> None:
    found = together([quick, full, slow])
    assert all("rank 1: OSError: No space left on device" in str(error) for error in found[:2])


def test_while_the_first_rank_works_the_others_wait_and_see_it_fail() -> None:
    assert together([slow, quick], first=True) == [None, None]
    _, other = together([silent, quick], first=True)
    assert "rank 0 did not answer" in str(other)


def test_a_file_is_on_disk_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    ticks: list[int] = []
    path = tmp_path / "file"
    monkeypatch.setattr("os.fdatasync", lambda handle: synced.append(path.stat().st_size))
    data = bytes(range(256)) * (5 * PIECE_BYTES // 512)  # two pieces and a half
    with CheckpointWriter(tmp_path, lambda: ticks.append(1)).fs.create_stream(path, "wb") as file:
        assert file.write(data) == len(data)
    assert path.read_bytes() == data
    assert synced == [PIECE_BYTES, 2 * PIECE_BYTES] and len(ticks) == 3


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    "ended", [Terminated(), KeyboardInterrupt(), dist.DistError("store")], ids=["SIGTERM", "SIGINT", "peer"]
)
def test_what_ends_a_rank_within_a_piece_is_raised_as_it_is(tmp_path: Path, ended: BaseException) -> None:
    """By the handler of a signal, or as it tells its progress; torch's archive says "unexpected pos 704 vs 598"."""
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) > 3:  # within a tensor
            raise ended

    writer = CheckpointWriter(tmp_path, tick)
    save({"weight": torch.zeros(1000)}, storage_writer=writer, no_dist=True)
    with pytest.raises(type(ended)):
        writer.write()
