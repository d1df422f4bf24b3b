"""What another process makes beside this one is what this one would have made, whatever becomes of that process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from placer.strategies import background as forked
from placer.strategies.background import Forked, from_both_ends, in_shares


@pytest.fixture(autouse=True)
def _a_second_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine of one core."""
    monkeypatch.setattr(forked, "_another_core", lambda: True)


def _never() -> bool:
    return False


def test_items_of_another_process_come_in_order_and_refer_to_what_is_here() -> None:
    kept = ["large"]

    def make() -> Iterator[tuple[int, int, list[str]]]:
        for number in range(3):
            yield number, os.getpid(), kept

    other = Forked(make, kept=(kept,))
    try:
        assert other.apart
        found = list(other)
    finally:
        other.close()
    assert [number for number, _, _ in found] == [0, 1, 2]
    assert all(process != os.getpid() for _, process, _ in found)
    assert all(thing is kept for _, _, thing in found)


def test_without_leave_everything_is_made_here() -> None:
    found = Forked(lambda: iter([os.getpid()]), apart=False)
    assert not found.apart
    assert list(found) == [os.getpid()]


def test_what_a_killed_process_owes_is_made_here(tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def make() -> Iterator[tuple[int, int]]:
        for number in range(3):
            if number == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield number, os.getpid()

    other = Forked(make)
    try:
        found = list(other)
    finally:
        other.close()
    assert [number for number, _ in found] == [0, 1, 2]
    # The first may or may not have been sent before.
    assert [process == os.getpid() for _, process in found[1:]] == [True, True]


def test_an_error_of_the_other_process_is_raised_here() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    other = Forked(make)
    try:
        with pytest.raises(ValueError, match="no second one"):
            list(other)
    finally:
        other.close()


def test_what_is_ready_is_had_without_waiting() -> None:
    def make() -> Iterator[int]:
        yield 1
        time.sleep(600)
        yield 2

    other = Forked(make)
    try:
        found: list[int] = []
        while not found:
            found += other.ready()
        assert found == [1]
    finally:
        other.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("apart", [True, False])
def test_both_ends_meet(count: int, *, apart: bool) -> None:
    found = from_both_ends(range(count), lambda item: (item, os.getpid()), apart=apart, over=_never)
    assert [item for item, _ in found] == list(range(count))
    if count:
        assert found[0][1] == os.getpid()


def test_while_both_of_two_cores_make_items_neither_starts_a_third_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts(item: int) -> bool:
        other = Forked(lambda: iter((item,)))
        try:
            return other.apart
        finally:
            other.close()

    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert from_both_ends(range(3), starts, apart=True, over=_never) == [False] * 3
    assert starts(0), "the other one is free again"


def test_both_ends_share_the_work() -> None:
    both, met = multiprocessing.get_context("fork").Barrier(2), list[int]()

    def make(item: int) -> tuple[int, int]:
        if not met:  # the first of each process waits for the other's
            met.append(both.wait(timeout=1800))
        return item, os.getpid()

    found = from_both_ends(range(8), make, apart=True, over=_never)
    assert [item for item, _ in found] == list(range(8))
    assert len({process for _, process in found}) == 2


def test_what_both_have_made_counts_once() -> None:
    before = {child.pid for child in multiprocessing.active_children()}

    def make(item: int) -> int:
        if item == 1:  # made here while the other process makes everything down to it
            for child in multiprocessing.active_children():
                if child.pid not in before:
                    child.join()
        return item

    assert from_both_ends(range(4), make, apart=True, over=_never) == [0, 1, 2, 3]


def test_what_is_over_leaves_the_first() -> None:
    found = from_both_ends(range(5), lambda item: item, apart=False, over=lambda: True)
    assert found == [0]


@pytest.mark.parametrize("cores", [0, 1, 3])
def test_shares_come_back_in_order_made_by_as_many_processes_as_there_are_cores(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "_other_cores", lambda: cores)
    found = in_shares(range(7), lambda item: (item, os.getpid()))
    assert [item for item, _ in found] == list(range(7))
    assert found[0][1] == os.getpid()
    assert len({process for _, process in found}) == 1 + cores
    assert in_shares((), lambda item: item) == []


def test_the_share_of_a_killed_process_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_other_cores", lambda: 1)
    here = os.getpid()

    def make(item: int) -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    assert in_shares(range(4), make) == [0, 1, 2, 3]
