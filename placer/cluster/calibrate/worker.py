"""One measuring process: `python -m placer.cluster.calibrate.worker RANK DEVICES cpu|cuda FOLDER [SECONDS]`.

With SECONDS it measures how much steps of so many vary, else what a cluster is described by.

All processes measure the same thing at the same time, so that a rate is what one gets while all are at work. The first
prints `progress ...` lines and one `result {json}` line.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import psutil
import torch
import torch.distributed as dist

from placer.cluster.calibrate.host_copies import host_copies
from placer.cluster.calibrate.kernel_timings import kernel_times
from placer.cluster.calibrate.machine import cpu_model
from placer.cluster.calibrate.op_timings import op_times
from placer.cluster.calibrate.products import products
from placer.cluster.calibrate.result import Calibration, DeviceMeasurement
from placer.cluster.calibrate.timings import (
    Together,
    all_reduces,
    attention,
    launch_seconds,
    memory_bandwidth,
    messages,
    mixed_bandwidth,
    repeated_steps,
)
from placer.cluster.calibrate.varying import STEPS, DeviceSteps, MeasuredSteps

# What importing a model class of transformers adds to a process that has torch (145 MiB with 5.23, November 2026).
MODEL_LIBRARIES = 150 * 2**20


def main(arguments: list[str]) -> None:
    """Measure and, as rank 0, print."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    rank, devices, kind, folder = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    device = torch.device(f"cuda:{rank}" if kind == "cuda" else "cpu")
    _join(rank, devices, kind, folder, device)
    together = Together(rank=rank, size=devices, device=device)
    measured = _steps(together, float(arguments[4])) if len(arguments) > 4 else _measurement(together)
    if rank == 0:
        print("result", measured.model_dump_json(), flush=True)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _end_with_parent(parent: int) -> None:
    """A killed parent cannot end its workers; nobody would read what they measure."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _join(rank: int, devices: int, kind: str, folder: str, device: torch.device) -> None:
    """The process group, over a file and the loopback interface: no port, no name lookup."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    if Path(f"/sys/class/net/{loopback}").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=devices,
        timeout=timedelta(seconds=60),
    )


def _steps(together: Together, seconds: float) -> MeasuredSteps:
    """Those of all ranks; the same on every rank."""
    mine = repeated_steps(together, seconds=seconds, count=STEPS)
    everyone = together.gather((_name(together.device), mine))
    return MeasuredSteps(devices=tuple(DeviceSteps(name=name, seconds=own) for name, own in everyone))


def _measurement(together: Together) -> Calibration:
    """Everything, in order; the same on every rank."""
    overhead = _overhead(together.device)
    mine = DeviceMeasurement(
        name=_name(together.device),
        backend=together.device.type,
        memory_bytes=_memory(together.device),
        products=products(together),
        memory_bandwidth=memory_bandwidth(together),
        mixed_bandwidth=mixed_bandwidth(together),
        launch_seconds=launch_seconds(together),
        kernels=kernel_times(together),
        host_copies=host_copies(together),
        overhead_bytes=overhead,
        attention=attention(together),
        ops=op_times(together),
        multiprocessors=_multiprocessors(together.device),
    )
    pairs = messages(together)
    rings = all_reduces(together)
    everyone = together.gather((mine.model_dump_json(), pairs, rings))
    return Calibration(
        devices=tuple(DeviceMeasurement.model_validate_json(text) for text, _, _ in everyone),
        messages=_medians([points for _, points, _ in everyone if points]),
        all_reduces=_medians([points for _, _, points in everyone if points]),
        lost=together.lost,
    )


def _medians(ranks: list[tuple[tuple[float, float], ...]]) -> tuple[tuple[float, float], ...]:
    """(bytes, median seconds over the ranks)."""
    return tuple((points[0][0], median(seconds for _, seconds in points)) for points in zip(*ranks, strict=True))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"process on {cpu_model()}"


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def _multiprocessors(device: torch.device) -> int:
    """Those of a GPU; a processor has none."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 0


def _overhead(device: torch.device) -> int:
    """Bytes this process takes before it holds a tensor: the CUDA context, or its resident libraries."""
    if device.type == "cuda":
        torch.zeros(1, device=device)
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)
    return int(psutil.Process().memory_info().rss) + MODEL_LIBRARIES


if __name__ == "__main__":
    main(sys.argv[1:])
