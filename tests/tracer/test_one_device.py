"""A person's code hears of no process group where placer has one, but for code that makes its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh

from placer.io.one_device import as_on_one_device, ranks_asked_for


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def test_there_is_no_group_on_this_thread_and_there_is_one_on_others(group: None) -> None:
    heard: list[bool] = []
    with as_on_one_device():
        other = threading.Thread(target=lambda: heard.append(distributed.is_initialized()))
        other.start()
        other.join()
        assert not distributed.is_initialized()
    assert heard == [True]
    assert distributed.is_initialized()


def test_code_that_makes_a_group_has_the_one_there_is(group: None) -> None:
    with as_on_one_device():
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", init_method="file:///nowhere", rank=0, world_size=1)
        assert distributed.get_world_size() == 1
    assert distributed.is_initialized()


def test_a_group_that_code_makes_and_ends_stays_that_of_the_run(group: None) -> None:
    with as_on_one_device():
        distributed.init_process_group("gloo")
        distributed.destroy_process_group()
        assert not distributed.is_initialized()
    assert distributed.is_initialized()
    distributed.barrier()


def test_without_a_group_code_has_one_of_its_process_alone_which_ends_with_it() -> None:
    with as_on_one_device():
        distributed.init_process_group("nccl", init_method="tcp://10.255.255.1:1", rank=1, world_size=2)
        assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    assert not distributed.is_initialized()


def test_a_group_that_another_thread_makes_meanwhile_stays() -> None:
    def make() -> None:
        distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

    with as_on_one_device():
        other = threading.Thread(target=make)
        other.start()
        other.join()
    assert distributed.is_initialized()
    distributed.destroy_process_group()


def test_a_name_that_was_imported_before_means_the_same() -> None:
    with as_on_one_device():
        init_device_mesh("cpu", (1,))
        assert distributed.is_initialized()
    assert not distributed.is_initialized()


def test_a_name_that_is_imported_meanwhile_is_torchs_own_afterwards() -> None:
    with as_on_one_device():
        from torch.distributed import init_process_group
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert distributed.is_initialized()
    distributed.destroy_process_group()


def test_questions_for_ranks_are_noted(group: None) -> None:
    with ranks_asked_for() as asked:
        assert asked == []
        assert not distributed.is_initialized()
    assert asked == ["WORLD"]
