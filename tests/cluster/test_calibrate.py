"""Measuring this machine: what becomes of the measurements, the cache, and one real measurement of two processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from clusters import link_between
from placer.cluster import calibrate as calibration
from placer.cluster.calibrate import cache_path, calibrate, describe_machine, local_cluster, timings, varying_steps
from placer.cluster.calibrate.machine import fingerprint
from placer.cluster.calibrate.result import (
    AttentionTime,
    Calibration,
    DeviceMeasurement,
    communication_cores,
    fitted_line,
    local_description,
)
from placer.cluster.calibrate.timings import Together
from placer.cluster.calibrate.varying import STEPS, DeviceSteps, MeasuredSteps, ranks_yaml
from placer.cluster.cluster import FLASH_SHARES, Cluster
from placer.cluster.cluster_file import cluster_yaml, parse_cluster
from placer.cluster.topology import bottleneck
from placer.costs.variability.rank_file import read_unsteady_ranks
from placer.errors import ExecutionError, UsageError
from placer.runtime.dry.fake_world import fake_world

SIZES = (2.0**12, 2.0**16, 2.0**20, 2.0**24)


def measurement(devices: int = 2, speed: float = 1.0) -> Calibration:
    """What processes of 100 GFLOP/s would measure over a link of 50 us and 2 GB/s whose ring reaches 1 GB/s."""
    one = DeviceMeasurement(
        name="process", backend="cpu", memory_bytes=2**34,
        products={"float32": ((1e6, 5e10 * speed), (1e9, 1e11 * speed)), "bfloat16": ((1e6, 1e11), (1e9, 4e11))},
        memory_bandwidth=1e10, mixed_bandwidth=4e9, launch_seconds=5e-6, overhead_bytes=2**28,
    )  # fmt: skip
    steps, share = 2 * (devices - 1), 2 * (devices - 1) / devices
    return Calibration(
        devices=(one,) * devices,
        messages=tuple((size, 50e-6 + size / 2e9) for size in SIZES),
        all_reduces=tuple((size, 100e-6 + steps * 50e-6 + share * size / 1e9) for size in SIZES),
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def counted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The device counts that were measured, without measuring."""
    asked: list[int] = []

    def measure(devices: int, **_: object) -> Calibration:
        asked.append(devices)
        return measurement(devices)

    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setattr(calibration, "busy_cores", lambda: 0.0)
    monkeypatch.setattr("placer.cluster.calibrate.result.available_memory", lambda: 2**34)
    return asked


def test_a_line_is_found_through_points_of_every_magnitude() -> None:
    found = fitted_line([(size, 3e-5 + size / 5e9) for size in SIZES])
    assert found.intercept == pytest.approx(3e-5)
    assert found.slope == pytest.approx(1 / 5e9)


def test_a_line_never_has_a_negative_cost() -> None:
    through_origin = fitted_line([(1e3, 1e-7), (1e6, 9e-4), (1e9, 1.0)])
    assert through_origin.intercept == 0 and through_origin.slope > 0
    assert fitted_line([(1e3, 2.0), (1e6, 1.0)]).slope > 0


def test_rates_are_the_best_products_and_the_curve_their_share() -> None:
    device = local_description(measurement(), name="x").devices[0]
    assert device.rate("float32") == 1e11 and device.rate("bfloat16") == 4e11
    assert device.efficiency("float32", 1e6) == 0.5 and device.efficiency("bfloat16", 1e6) == 0.25
    assert device.memory_bandwidth * device.memory_share == pytest.approx(4e9)


def test_communication_has_the_cores_that_no_thread_computes_on() -> None:
    assert communication_cores(16, processes=4, threads=4) == 0
    assert communication_cores(16, processes=4, threads=3) == 1
    assert communication_cores(2, processes=4, threads=1) == 0
    # The threads of a bound process stay on its cores, however many others are idle.
    assert communication_cores(16, processes=4, threads=2, own_cores=2) == 0
    assert communication_cores(16, processes=4, threads=2, own_cores=3) == 1


def test_attention_reaches_the_share_that_was_measured() -> None:
    """Of 100 GFLOP/s, each process its own; without a measurement no share is assumed."""
    before = measurement()
    devices = tuple(
        one.model_copy(update={"attention": AttentionTime(rates=rates, head_seconds=(0.0, 0.0))})
        for one, rates in zip(before.devices, ((7e10, 5e10), (8e10, 4e10)), strict=True)
    )
    (device, _) = local_description(before.model_copy(update={"devices": devices}), name="local").devices
    assert device.flash_shares == (0.75, 0.45)
    assert parse_cluster(cluster_yaml(local_description(before, name="local"))).devices[0].flash_shares == FLASH_SHARES


@pytest.mark.in_turns
def test_processes_are_bound_while_they_are_measured(cache: Path) -> None:
    """Both on one core get half of what it gives, and nothing is kept for the next who asks."""
    core = min(os.sched_getaffinity(0))
    cluster = calibrate(2, bound=((core,), (core,)))
    assert cluster.devices[0].communication_cores == 0
    assert "on 1 cores of its own" in cluster.notes[0]
    assert not list(cache.rglob("calibration-*"))
    with pytest.raises(UsageError, match="2 processes were asked for and cores of 1"):
        calibrate(2, bound=((core,),))


def test_the_link_gives_back_the_measured_messages_and_all_reduces() -> None:
    count = 4
    cluster = local_description(measurement(count), name="x")
    message, levels = link_between(cluster, 0, 1), bottleneck(cluster, range(count))
    assert levels.intra is not None
    assert message.seconds(1e6) == pytest.approx(50e-6 + 1e6 / 2e9, rel=0.01)
    ring = levels.intra.setup_seconds + 2 * (count - 1) * levels.intra.latency_seconds
    ring += 2 * (count - 1) / count * 1e6 / levels.intra.bandwidth
    assert ring == pytest.approx(100e-6 + 2 * 3 * 50e-6 + 2 * 3 / 4 * 1e6 / 1e9, rel=0.01)


def test_processes_share_the_memory_of_the_machine() -> None:
    machine = describe_machine()
    for count in (1, 4):
        device = local_description(measurement(count), name="x").devices[0]
        assert device.memory_bytes == pytest.approx(machine.available_bytes / count, rel=0.2)


def test_a_busy_machine_is_said_to_be_busy() -> None:
    assert local_description(measurement(), name="x", load=0.0).doubts == ()
    (doubt,) = local_description(measurement(), name="x", load=1e3).doubts
    assert "load average of 1000.0" in doubt and "placer calibrate" in doubt


def test_a_machine_of_which_other_work_took_the_cores_is_said_to_be_busy() -> None:
    assert local_description(measurement().model_copy(update={"lost": 0.04}), name="x").doubts == ()
    (doubt,) = local_description(measurement().model_copy(update={"lost": 0.3}), name="x").doubts
    assert "took 30% of the time of its cores" in doubt


class Clock:
    """Stands for the module `time`: a call takes 20 ms of its thread, as long again while other work has its core."""

    def __init__(self, disturbed: int) -> None:
        self.now = self.had = 0.0
        self.calls, self.disturbed = 0, disturbed

    def call(self) -> None:
        self.had += 0.02
        self.now += 0.04 if 0 < self.calls <= self.disturbed else 0.02
        self.calls += 1

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.had

    monotonic = perf_counter


@pytest.mark.parametrize(("disturbed", "seconds", "lost"), [(0, 0.02, 0.0), (2, 0.02, 0.0), (10**6, 0.04, 0.5)])
def test_a_window_in_which_other_work_took_a_core_is_taken_again(
    disturbed: int, seconds: float, lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(disturbed)
    monkeypatch.setattr(timings, "time", clock)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with fake_world(0, 1):
        together = Together(rank=0, size=1, device=torch.device("cpu"), begun=0.0)
        assert together.seconds(clock.call) == pytest.approx(seconds)
    assert together.lost == pytest.approx(lost)
    assert len(together.shares) == 3


def test_a_measurement_is_taken_once_and_remembered(counted: list[int]) -> None:
    first, second = local_cluster(2), Cluster.load("localx2")
    assert first == second and counted == [2]
    assert local_cluster(3).size == 3 and counted == [2, 3]


def test_what_was_measured_on_a_busy_machine_is_measured_again_when_it_is_idle(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "busy_cores", lambda: 1e3)
    assert local_cluster(2) == local_cluster(2) and counted == [2]
    monkeypatch.setattr(calibration, "busy_cores", lambda: 0.0)
    assert local_cluster(2) == local_cluster(2) and counted == [2, 2]


def test_workers_end_with_the_process_that_wanted_the_result(cache: Path) -> None:
    code = "from placer.cluster.calibrate import calibrate; calibrate(1, progress=lambda text: print(text, flush=True))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline()
        workers = psutil.Process(parent.pid).children(recursive=True)
        assert workers
        parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=1800)
    assert not alive


def test_calibrating_measures_again(counted: list[int]) -> None:
    local_cluster(2)
    calibrate(2)
    assert counted == [2, 2]


@pytest.mark.parametrize("damage", ["", "name: x\n", "\x00\x01", "half"])
def test_a_damaged_cache_is_measured_again(damage: str, counted: list[int]) -> None:
    good = local_cluster(2)
    path = cache_path(fingerprint(2))
    text = path.read_text()
    path.write_text(text[: len(text) // 2] if damage == "half" else damage)
    assert local_cluster(2) == good and counted == [2, 2]
    assert path.read_text() == text


def test_a_cache_that_cannot_be_written_costs_only_time(counted: list[int], cache: Path) -> None:
    (cache / "placer").write_text("a file where the folder should be")
    assert local_cluster(2).size == local_cluster(2).size == 2
    assert counted == [2, 2]


def test_a_calibration_file_is_a_cluster_file(counted: list[int]) -> None:
    cluster = calibrate(2)
    path = cache_path(fingerprint(2))
    assert Cluster.load(str(path)) == cluster == parse_cluster(cluster_yaml(cluster))


def test_threads_and_devices_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint(2) != fingerprint(3)
    before = fingerprint(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert fingerprint(2) != before


@pytest.mark.parametrize("devices", [0, -1, 10**6])
def test_an_impossible_number_of_devices_is_refused(devices: int) -> None:
    with pytest.raises(UsageError, match="ask for 1 to"):
        calibrate(devices)


def test_a_failed_measurement_says_which_process_failed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = cache / "python"
    failing.write_text("#!/bin/sh\necho no torch here >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    with pytest.raises(ExecutionError, match="process 0 ended with 3: no torch here"):
        calibrate(2)
    assert not list(cache.glob("placer/*"))


def test_a_remembered_machine_is_read_without_torch(counted: list[int], cache: Path) -> None:
    local_cluster(2)
    code = "import sys; from placer import Cluster; print(Cluster.load('localx2').size, 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, check=True)
    assert ran.stdout.split() == ["2", "False"]


def test_the_machine_is_described_as_torch_sees_it() -> None:
    machine = describe_machine()
    assert machine.torch == torch.__version__
    assert len(machine.gpus) == torch.cuda.device_count()
    assert ("gloo" in machine.backends) == torch.distributed.is_gloo_available()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert 0 < machine.available_bytes <= machine.memory_bytes
    extras = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {name for name, _ in machine.extras} == extras.keys() - {"test", "all"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[str]]]:
    """Two processes of this machine, really measured."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield calibrate(2, progress=said.append), said


@pytest.mark.in_turns
def test_two_processes_measure_everything_a_plan_needs(measured: tuple[Cluster, list[str]]) -> None:
    cluster, _ = measured
    device, link = cluster.devices[0], cluster.nodes[0].link
    assert cluster.size == 2 and cluster.measured
    assert {dtype for dtype, _ in device.rates} <= {"float32", "float64", "bfloat16", "float16"}
    assert 1e8 < device.rate("float32") < 1e15
    assert all(max(share for _, share in curve.points) == 1 for _, curve in device.curves)
    assert device.memory_bandwidth > 1e7 and 0 < device.memory_share <= 1
    assert 1e-8 < device.launch_seconds < 1e-2
    assert device.communication_cores is not None and device.flash_shares[0] <= 1
    assert link.bandwidth > 1e6 and 0 <= link.latency_seconds < 0.1
    assert parse_cluster(cluster_yaml(cluster)) == cluster


def test_measuring_tells_its_progress(measured: tuple[Cluster, list[str]]) -> None:
    _, said = measured
    wanted = ("matrix products in float32", "memory bandwidth", "seconds per op", "messages", "all-reduce")
    assert all(any(text.startswith(topic) for text in said) for topic in wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_as_itself(cache: Path) -> None:
    device = calibrate(1).devices[0]
    assert device.backend == "cuda" and device.name == torch.cuda.get_device_name(0)
    assert device.rate("bfloat16") > device.rate("float64")


def test_steps_that_were_measured_are_ranks_that_vary(tmp_path: Path) -> None:
    devices = tuple(
        DeviceSteps(name=name, seconds=seconds)
        for name, seconds in (("fast", (0.01, 0.02)), ("slow: 'x'", (0.5, 0.0)), ("fast", (0.03, 0.04)))
    )
    (tmp_path / "ranks.yaml").write_text(ranks_yaml(MeasuredSteps(devices=devices)))
    fast, slow = read_unsteady_ranks(str(tmp_path / "ranks.yaml")).kinds
    assert (fast.name, fast.count, fast.times.atoms) == ("fast", 2, (0.01, 0.02, 0.03, 0.04))
    assert (slow.name, slow.count, slow.times.atoms) == ("slow: 'x'", 1, (0.5, 0.0))


@pytest.mark.in_turns
def test_two_processes_measure_how_their_steps_vary(cache: Path) -> None:
    measured = varying_steps(2, 0.002)
    assert [len(one.seconds) for one in measured.devices] == [STEPS] * 2
    assert all(second > 0 for one in measured.devices for second in one.seconds)
