"""Processes, threads and cores of a host: the published setting, what holds for all hosts, what ranks are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.measured import threads
from placer.cluster.threads import Topology, advised_processes, host_threads, thread_settings, topology

DUAL = Topology(sockets=(tuple(range(12)), tuple(range(12, 24))))


def test_the_published_setting_of_a_dual_socket_host() -> None:
    """2 processes a socket, 6 threads bound to cores, communication on cores 0, 1, 12, 13, inter-op = sockets."""
    assert advised_processes(DUAL) == 2 * 2
    found = host_threads(DUAL, 4)
    assert [one.threads for one in found.processes] == [6] * 4
    assert [one.cores for one in found.processes] == [tuple(range(k, k + 6)) for k in (0, 6, 12, 18)]
    assert found.communication == (0, 1, 12, 13)
    assert {one.inter_op for one in found.processes} == {2}
    assert "bound to cores: 0-5; 6-11; 12-17; 18-23, communication on 0-1, 12-13" in str(found)


@given(st.integers(1, 4), st.integers(1, 16), st.integers(1, 80), st.integers(1, 80))
def test_no_core_is_given_twice_and_no_thread_is_without_one(
    sockets: int, each: int, processes: int, usable: int
) -> None:
    host = Topology(sockets=tuple(tuple(range(k * each, (k + 1) * each)) for k in range(sockets)))
    found = host_threads(host, processes, usable)
    assert len(found.processes) == processes
    cores = [core for one in found.processes for core in one.cores]
    assert len(set(cores)) == len(cores) <= host.cores
    assert all(len(one.cores) in (0, one.threads) for one in found.processes)
    threads = sum(one.threads for one in found.processes)
    assert threads <= max(processes, min(host.cores, usable))
    for one in found.processes:
        assert len({core // each for core in one.cores}) <= 1, "a process has cores of two sockets"


def test_one_socket_is_left_to_the_system_and_a_quota_is_kept() -> None:
    one = Topology(sockets=((0, 1, 2, 3),))
    assert [own.threads for own in host_threads(one, 2).processes] == [2, 2]
    assert not any(own.cores for own in host_threads(one, 2).processes)
    assert [own.threads for own in host_threads(DUAL, 4, usable=8).processes] == [2] * 4


def test_the_topology_counts_cores_not_their_threads(tmp_path: Path) -> None:
    for number, (socket, core) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)] * 2):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(str(socket))
        (folder / "core_id").write_text(str(core))
    assert topology(tmp_path, frozenset(range(8))) == Topology(sockets=((0, 1), (2, 3)))
    assert topology(tmp_path, frozenset({1, 2, 5})) == Topology(sockets=((1,), (2,)))


# A rank of two on a host of two sockets, made of processors that this machine has.
RANK = """
import json, os, sys, torch
from examples.measured import threads
from placer.cluster.threads import Topology
from placer.runtime.distributed import threads
cores = sorted(os.sched_getaffinity(0))
host = Topology(sockets=((cores[0],), (cores[1],)))
threads.chosen_by_user = lambda: CHOSEN
torch.set_num_threads(3)
applied = threads.apply_threads(host)
print(json.dumps([torch.get_num_threads(), sorted(os.sched_getaffinity(0)), cores, applied is not None]))
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("chosen", [False, True])
def test_a_rank_is_given_its_threads_and_core_unless_the_user_chose(chosen: bool) -> None:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs Linux and two processors")
    done = subprocess.run(
        [sys.executable, "-c", RANK.replace("CHOSEN", str(chosen))],
        env={**os.environ, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, bound, cores, applied = json.loads(done.stdout)
    assert (count, bound, applied) == ((3, cores, False) if chosen else (1, cores[1:2], True))


# torchrun sets OMP_NUM_THREADS=1 in itself for the ranks: what it was started with is what somebody chose.
PARENT = """
import os, subprocess, sys
os.environ["OMP_NUM_THREADS"] = "1"
asked = "from placer.runtime.distributed.threads import chosen_by_user; print(chosen_by_user())"
print(subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout)
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("given_threads", [None, "2"])
def test_what_torchrun_gives_by_itself_is_nobodys_choice(given_threads: str | None) -> None:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path)} | ({"OMP_NUM_THREADS": given_threads} if given_threads else {})
    done = subprocess.run([sys.executable, "-c", PARENT], env=env, capture_output=True, text=True, timeout=1800)
    assert done.stdout.split() == [str(given_threads is not None)], done.stderr


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 40))
def test_every_setting_has_a_core_for_each_thread_and_the_advised_ones_are_among_them(
    sockets: int, each: int, usable: int
) -> None:
    host = Topology(sockets=tuple(tuple(range(k * each, (k + 1) * each)) for k in range(sockets)))
    found = thread_settings(host, usable)
    granted = min(host.cores, usable)
    assert len(set(found)) == len(found)
    for one in found:
        assert sum(own.threads for own in one.processes) <= granted
        cores = [core for own in one.processes for core in own.cores]
        assert len(set(cores)) == len(cores) and set(cores) <= set(range(host.cores))
        assert all(len({core // each for core in own.cores}) <= 1 for own in one.processes)
    assert {host_threads(host, k, usable) for k in range(1, granted + 1) if granted % k == 0} <= set(found)


def test_the_published_setting_is_one_of_those_of_its_host() -> None:
    found = thread_settings(DUAL)
    (published,) = [one for one in found if one.communication == (0, 1, 12, 13)]
    assert published == host_threads(DUAL, advised_processes(DUAL))
    assert {len(one.processes) for one in found} == {1, 2, 3, 4, 6, 8, 12, 24}


def test_measured_settings_are_named_and_drawn(tmp_path: Path) -> None:
    bound = host_threads(DUAL, 4)
    free = next(one for one in thread_settings(DUAL) if len(one.processes) == 2 and not one.processes[0].cores)
    found = [
        threads.MeasuredSetting(setting=bound, predicted=0.1, measured=0.12, chosen=True),
        threads.MeasuredSetting(setting=free, predicted=0.2, measured=0.2, chosen=False),
    ]
    assert [one.name for one in found] == ["4 x 6 bound *", "2 x 1"]
    assert str(found[0]).split() == ["4", "x", "6", "bound", "*", "100", "120", "20%"]
    pytest.importorskip("matplotlib", reason="the picture needs placer-planner[plot]")
    threads.draw(found, tmp_path / "threads.svg")
    assert "<svg" in (tmp_path / "threads.svg").read_text()


def test_what_is_measured_is_given_its_threads_and_others_get_theirs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with threads.threads_of_each(2):
        assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["OMP_NUM_THREADS"] == "3"
