"""Ranks that are started, fail, hang or are killed."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from execute_plans import two_rank_plan
from placer.cli.options import Timeout, first_rank
from placer.errors import ExecutionError, UsageError
from placer.runtime.distributed.faults import START_SECONDS, Watch, guarded
from placer.runtime.distributed.launch import failure, launch_module
from placer.runtime.distributed.world import joined as world_joined
from placer.runtime.distributed.world import require_world

SECONDS = 1800.0


@pytest.mark.in_turns
def test_ranks_that_end_in_order_give_exit_code_0_and_their_lines() -> None:
    launched = launch_module(("execute_ranks", "fine"), 2, SECONDS)
    assert launched.exit_code == 0
    assert "rank 0 is done" in launched.output and "rank 1 is done" in launched.output


def test_a_killed_rank_is_named_by_the_launcher_and_by_the_surviving_rank() -> None:
    began = time.monotonic()
    with pytest.raises(ExecutionError, match=r"rank 1 died of SIGKILL") as caught:
        launch_module(("execute_ranks", "killed"), 2, SECONDS)
    assert time.monotonic() - began < SECONDS / 2
    assert "placer: " in str(caught.value) and "rank 1 died without a word" in str(caught.value)


class Told:
    """Ends its process as it is cleaned away, where Python drops what is raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def test_a_rank_that_is_ended_while_python_cleans_up_ends_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExecutionError, match="ended by SIGTERM"), guarded(Watch(HashStore(), 0, 1)):
        told = Told()
        del told
        time.sleep(SECONDS)
    assert capsys.readouterr().err == ""


@contextmanager
def joined(store: HashStore) -> Iterator[None]:
    """As a run is left: through a block around the one that hears SIGTERM."""
    with guarded(Watch(store, 0, 1)):
        yield


def test_an_error_is_told_also_where_the_rank_is_told_to_end_as_it_leaves() -> None:
    # Within one call of C SIGTERM comes and an error is raised: Python calls the handler as the outer block is left.
    kill, store = ctypes.CDLL(None).kill, HashStore()
    kill.restype = ord  # type: ignore[assignment]  # takes any callable
    with pytest.raises(TypeError, match="ord"), joined(store):
        kill(os.getpid(), signal.SIGTERM)
    assert store.get("error/0").startswith(b"TypeError: ord")


def test_a_rank_that_is_told_to_end_as_it_leaves_in_order_ends_as_told() -> None:
    store = HashStore()
    with pytest.raises(ExecutionError, match="ended by SIGTERM"), joined(store):
        ctypes.CDLL(None).kill(os.getpid(), signal.SIGTERM)
    assert store.check(["told/0"])


def test_a_rank_that_handles_an_error_is_let_and_ends_after_it() -> None:
    handled = []
    with pytest.raises(ExecutionError, match="ended by SIGTERM"), guarded(Watch(HashStore(), 0, 1)):
        try:
            raise ValueError
        except ValueError:
            os.kill(os.getpid(), signal.SIGTERM)
            handled.append(True)
        time.sleep(SECONDS)
    assert handled == [True]


def test_a_rank_that_handles_an_error_for_long_ends_all_the_same() -> None:
    with pytest.raises(ExecutionError, match="ended by SIGTERM"), guarded(Watch(HashStore(), 0, 1)):
        try:
            raise ValueError
        except ValueError:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(SECONDS)


def test_what_was_put_off_is_due_where_the_body_ends() -> None:
    with pytest.raises(ExecutionError, match="ended by SIGTERM"), guarded(Watch(HashStore(), 0, 1)):
        try:
            raise ValueError
        except ValueError:
            os.kill(os.getpid(), signal.SIGTERM)


WAITING = """
import datetime, signal, sys, threading
from torch.distributed import HashStore
from placer.runtime.distributed.deafness import ended_if_deaf

# Called too early, before the call begins, the handler must not count as heard.
signal.signal(signal.SIGTERM, lambda *_: None)
with ended_if_deaf(threading.Event(), 0.5):
    print("waits", flush=True)
    try:
        HashStore().wait(["what nobody leaves"], datetime.timedelta(seconds=600))
    except Exception:
        sys.exit(7)
"""
FORKING = """
import os, signal, threading, time
from placer.runtime.distributed.deafness import ended_if_deaf

signal.signal(signal.SIGTERM, lambda *_: None)
with ended_if_deaf(threading.Event(), 0.1):
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    time.sleep(2)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    time.sleep(1)
"""


def test_a_rank_that_waits_in_one_call_for_others_ends_when_it_is_told_to() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == "waits\n"
        rank.terminate()
        try:
            _, said = rank.communicate(timeout=SECONDS)
        finally:
            rank.kill()
    assert rank.returncode == 1 and "ended by SIGTERM while it waited for other ranks" in said


def test_a_forked_process_that_is_told_to_end_does_not_end_its_rank() -> None:
    assert subprocess.run([sys.executable, "-c", FORKING], timeout=SECONDS, check=False).returncode == 0


@pytest.mark.in_turns
def test_ranks_join_once_more_after_they_have_left() -> None:
    told: list[str] = []
    launch_module(("execute_ranks", "joins_again"), 2, SECONDS, echo=told.append)
    text = "\n".join(told)
    assert text.count("rank 0 sums 2") == text.count("rank 1 sums 2") == 2, text


def test_after_close_a_rank_does_not_go_on_with_its_own_rows_alone() -> None:
    told: list[str] = []
    launch_module(("execute_ranks", "goes_on_after_close"), 2, SECONDS, echo=told.append)
    text = "\n".join(told)  # two ranks may write in one line
    assert text.count("this executor was closed") == 2 * 3, text
    assert "gives" not in text


def test_an_error_of_one_rank_is_told_by_the_other() -> None:
    with pytest.raises(ExecutionError, match=r"rank 1 failed with exit code 1") as caught:
        launch_module(("execute_ranks", "fails"), 2, SECONDS)
    assert "rank 1 failed: ValueError: a shelf fell over" in str(caught.value)


def test_the_help_of_timeout_says_how_long_ranks_have_to_start() -> None:
    assert f"for that each has {START_SECONDS:.0f}." in str(Timeout.help)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_rank_that_somebody_ends_is_named_by_the_other(name: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        launch_module(("execute_ranks", "is_told", name), 2, SECONDS)
    assert f"rank 1 was ended by {name}, which somebody sent it; this rank ended because of it" in str(caught.value)


def test_a_rank_that_is_told_to_end_because_another_failed_is_no_cause() -> None:
    store = HashStore()
    ranks = [Watch(store, rank, 3) for rank in range(3)]
    ranks[0].leave_told("SIGTERM")
    ranks[1].leave_told("SIGTERM")
    assert ranks[2].cause().startswith("rank 0 was ended by SIGTERM") and "rank 1" not in ranks[2].cause()
    ranks[1].leave_error(ValueError("a shelf fell over"))
    assert ranks[2].cause() == "rank 1 failed: ValueError: a shelf fell over"


@pytest.mark.in_turns
def test_a_hanging_rank_is_named_after_the_group_timeout() -> None:
    with pytest.raises(ExecutionError) as caught:
        launch_module(("execute_ranks", "hangs"), 2, SECONDS)
    assert "rank 1 did not answer" in str(caught.value)


def test_more_ranks_than_the_plan_wants_are_refused_with_the_command_to_use() -> None:
    with pytest.raises(ExecutionError, match=r"wants 2 ranks, torchrun started 3, more.*--nproc-per-node 2"):
        launch_module(("execute_ranks", "fine"), 3, SECONDS)


def test_no_rank_outlives_a_launcher_that_is_killed() -> None:
    call = "launch_module(('execute_ranks', 'sleeps'), 2, 3600, echo=print)"
    code = f"from placer.runtime.distributed.launch import launch_module; {call}"
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-uc", code], env=environment, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        try:
            ranks = [_pid(launcher.stdout.readline()) for _ in range(2)]
        finally:
            launcher.kill()
    psutil.wait_procs([psutil.Process(pid) for pid in ranks if psutil.pid_exists(pid)], timeout=300)
    assert not any(psutil.pid_exists(pid) for pid in ranks)


def _pid(line: str) -> int:
    found = re.search(r"pid (\d+)", line)
    assert found, line
    return int(found.group(1))


def test_without_torchrun_the_error_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match=r"torchrun --nproc-per-node 2 --no-python placer execute mine.json"):
        require_world(two_rank_plan(), "mine.json")


def test_fewer_ranks_than_the_plan_wants_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UsageError, match=r"wants 2 ranks, torchrun started 1, fewer"):
        require_world(two_rank_plan())


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x' in the environment, which is no number; start the ranks with"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK is 5 in the environment, of 2 ranks, which count from 0; start the"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment, which is no number; start"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "x"}, "MASTER_PORT is 'x' in the environment"),
    ],
)
def test_an_environment_that_names_no_rank_is_refused(
    told: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"MASTER_ADDR": "127.0.0.1", **told}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=said), world_joined(two_rank_plan()):
        pass


def test_a_rank_that_no_run_has_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = {}
    for rank in ("0", "1", "2", "x"):
        monkeypatch.setenv("RANK", rank)
        said[rank] = first_rank()
    assert said == {"0": True, "1": False, "2": True, "x": True}


def test_a_port_that_is_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, text in told.items():
            monkeypatch.setenv(name, text)
        with pytest.raises(ExecutionError, match=f"port {port} of 127.0.0.1.*is in use"), world_joined(two_rank_plan()):
            pass


def test_output_without_torchruns_report_names_no_rank() -> None:
    assert failure("nothing of use") == "the ranks failed before torchrun could tell which"
