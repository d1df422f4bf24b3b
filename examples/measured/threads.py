"""Processes, threads and cores of this host: steps of a small model under every setting, predicted beside measured.

    python -m examples.measured.threads                         all settings, some 20 s each
    python -m examples.measured.threads --plot threads.svg      and a picture (needs placer-planner[plot])
    python -m examples.measured.threads --processes 2 4         of so many processes only

Settings are those of `placer.cluster.threads.thread_settings`: processes that divide the cores, threads of each
(intra-op), bound to cores (by taskset) or left to the system. Each trains replicas of the same model on the same global
batch by `placer execute` under torchrun. Predicted is the plan's step on this machine as `placer calibrate` measures it
now with so many processes and threads at once, bound to the same cores; gradients are summed beside the backward as far
as cores are left for that (`Device.communication_cores`). The setting marked * is the one that placer
chooses from the topology. It, and its threads for other numbers of processes, are run without OMP_NUM_THREADS, so that
`execute` itself applies them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from statistics import median

from placer import api
from placer.cluster.calibrate import calibrate
from placer.cluster.calibrate.machine import usable_cores
from placer.cluster.threads import HostThreads, Topology, advised_processes, host_threads, thread_settings, topology
from placer.errors import ExecutionError, require_extra
from placer.plans.plan import Plan
from placer.runtime.training.run_report import RunReport

MODEL, LENGTH, ROWS = "examples.gpt:build", 128, 8
STEPS, WARM_UP = 12, 3
LONGEST_SECONDS = 300.0
TORCHRUN = (
    "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr",
    "127.0.0.1", "--no-python",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSetting:
    """A setting and seconds of a step. chosen: placer's own for this host."""

    setting: HostThreads
    predicted: float
    measured: float
    chosen: bool

    @property
    def name(self) -> str:
        """`2 x 1 bound *`: processes, threads of each, binding, the mark of the chosen one."""
        first = self.setting.processes[0]
        bound = " bound" if first.cores else ""
        return f"{len(self.setting.processes)} x {first.threads}{bound}{' *' if self.chosen else ''}"

    def __str__(self) -> str:
        off = self.measured / self.predicted - 1
        return f"{self.name:24s}{1e3 * self.predicted:12.0f}{1e3 * self.measured:12.0f}{off:10.0%}"


def measured(setting: HostThreads, host: Topology, *, rows: int, steps: int) -> MeasuredSetting:
    """One setting, predicted and run."""
    processes = len(setting.processes)
    plan = planned(processes, setting.processes[0].threads, rows, tuple(o.cores for o in setting.processes if o.cores))
    assert plan.ledger is not None
    applied = setting == host_threads(host, processes, usable_cores())
    with tempfile.TemporaryDirectory(prefix="placer-threads-") as folder:
        seconds = run(plan, setting, Path(folder), steps=steps, applied=applied)
    chosen = applied and processes == advised_processes(host)
    return MeasuredSetting(setting=setting, predicted=plan.ledger.step_seconds, measured=seconds, chosen=chosen)


@cache
def planned(processes: int, threads: int, rows: int, bound: tuple[tuple[int, ...], ...] = ()) -> Plan:
    """Replicas on this machine as it is with so many processes and threads, each on cores of its own where bound."""
    with threads_of_each(threads):
        cluster = calibrate(processes, progress=lambda line: print(f"  {line}", file=sys.stderr), bound=bound)
    return api.plan(MODEL, cluster, batch=f"{rows}x{LENGTH}", strategy="data" if processes > 1 else "single")


@contextmanager
def threads_of_each(threads: int) -> Iterator[None]:
    """OMP_NUM_THREADS for what is started meanwhile."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def run(plan: Plan, setting: HostThreads, folder: Path, *, steps: int, applied: bool) -> float:
    """The median second of a step after the first ones, under torchrun; applied: `execute` makes the setting.

    Raises ExecutionError where the run fails.
    """
    path, report = folder / "plan.json", folder / "report.json"
    plan.save(path)
    first = setting.processes[0]
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if not applied:
        env["OMP_NUM_THREADS"] = str(first.threads)
    execute = f"{sys.executable} -m placer execute {path} --steps {steps} --report {report}"
    if first.cores and not applied:
        places = " ".join(",".join(map(str, one.cores)) for one in setting.processes)
        execute = f"cores=({places}); exec taskset -c ${{cores[$LOCAL_RANK]}} {execute}"
    command = [sys.executable, *TORCHRUN, f"--nproc-per-node={len(setting.processes)}", "bash", "-c", execute]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    if done.returncode:
        raise ExecutionError(f"{setting} failed:\n{done.stderr[-2000:]}")
    return median(RunReport.load(report).step_seconds[WARM_UP:])


def draw(found: Sequence[MeasuredSetting], path: Path) -> None:
    """Bars of predicted and measured steps. Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6, len(found)), 4.5), layout="constrained")
    axes, places = figure.subplots(), range(len(found))
    axes.bar([one - 0.2 for one in places], [one.predicted for one in found], 0.4, label="predicted")
    axes.bar([one + 0.2 for one in places], [one.measured for one in found], 0.4, label="measured")
    axes.set_xticks(list(places), [one.name for one in found], rotation=40, ha="right")
    axes.set_xlabel("processes x threads of each (*: chosen by placer)")
    axes.set_ylabel(f"seconds of a step, {MODEL}")
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", help="only settings of so many")
    parser.add_argument("--rows", type=int, default=max(ROWS, usable_cores()), help="of the global batch")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    options = parser.parse_args(argv)
    host = topology()
    chosen = host_threads(host, advised_processes(host), usable_cores())
    print(f"chosen for {host.cores} cores on {len(host.sockets)} socket{'s' * (len(host.sockets) > 1)}: {chosen}")
    print(f"{'processes x threads':24s}{'predicted ms':>12s}{'measured ms':>12s}{'off':>10s}")
    found = []
    for setting in thread_settings(host, usable_cores()):
        wanted = options.processes is None or len(setting.processes) in options.processes
        if wanted and (which("taskset") or not setting.processes[0].cores):
            found.append(measured(setting, host, rows=options.rows, steps=options.steps))
            print(found[-1], flush=True)
    by_prediction, fastest = (min(found, key=key) for key in (lambda one: one.predicted, lambda one: one.measured))
    print(f"fastest as predicted: {by_prediction.name}; as measured: {fastest.name}")
    if options.plot:
        draw(found, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
