"""What this machine is: processor, cores this process may use, memory, GPUs, and what is installed."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil

from placer.io.versions import installed

# What each optional extra of the distribution brings.
EXTRAS = {
    "genetic": ("deap",),
    "partition": ("pymetis",),
    "rl": ("stable_baselines3", "sb3_contrib", "gymnasium"),
    "deepspeed": ("deepspeed",),
    "report": ("tensorboard",),
    "data": ("pyarrow", "PIL", "webdataset"),
    "plot": ("matplotlib",),
    "html": ("bokeh",),
    "vision": ("timm", "torchvision"),
    "mpi": ("mpi4py",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as torch sees it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine and what is installed on it."""

    cpu: str
    cores: int
    memory_bytes: int
    available_bytes: int
    system: str
    python: str
    torch: str
    gpus: tuple[Gpu, ...]
    backends: tuple[str, ...]
    extras: tuple[tuple[str, bool], ...]


def describe_machine() -> Machine:
    """This machine; imports torch, which takes some seconds."""
    import torch
    import torch.distributed as dist

    known = ("gloo", "nccl", "mpi", "xccl")
    present = {name: getattr(dist, f"is_{name}_available", lambda: False)() for name in known}
    return Machine(
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_bytes=total_memory(),
        available_bytes=available_memory(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=torch.__version__,
        gpus=tuple(
            Gpu(name=torch.cuda.get_device_name(i), memory_bytes=torch.cuda.get_device_properties(i).total_memory)
            for i in range(torch.cuda.device_count())
        ),
        backends=tuple(name for name in known if dist.is_available() and present[name]),
        extras=tuple((extra, all(find_spec(module) for module in modules)) for extra, modules in EXTRAS.items()),
    )


def cpu_name() -> str:
    """The processor's model with the numbers of its family, as makers give several the same name."""
    fields = _cpu_fields()
    numbers = {"cpu family", "model"} <= fields.keys()
    return f"{cpu_model()} ({fields['cpu family']}/{fields['model']})" if numbers else cpu_model()


def cpu_model() -> str:
    """The processor's model as its maker calls it."""
    return _cpu_fields().get("model name") or platform.processor() or platform.machine()


def _cpu_fields() -> dict[str, str]:
    """What Linux says of the last processor; nothing elsewhere."""
    pairs = (line.split(":", 1) for line in _lines(Path("/proc/cpuinfo")) if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def usable_cores() -> int:
    """Cores this process may use: its affinity and its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _first_number(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, min(cores, int(quota / 100_000))) if quota else max(1, cores)


def total_memory() -> int:
    """Bytes of memory this process may use at most."""
    limit = _first_number(Path("/sys/fs/cgroup/memory.max"))
    return min(psutil.virtual_memory().total, limit or sys.maxsize)


def available_memory() -> int:
    """Bytes of memory free to use now."""
    limit = _first_number(Path("/sys/fs/cgroup/memory.max"))
    used = _first_number(Path("/sys/fs/cgroup/memory.current")) or 0
    free = psutil.virtual_memory().available
    return max(1, min(free, limit - used)) if limit else int(free)


def busy_cores() -> float:
    """Cores that others kept busy during the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def threads(devices: int) -> int:
    """Threads of each of `devices` processes: OMP_NUM_THREADS, else an even share of the cores, as placer starts ranks.

    torchrun by itself gives 1 to each of several ranks: set OMP_NUM_THREADS there to what the calibration says.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, usable_cores() // devices)


@cache
def visible_gpus() -> int:
    """GPUs torch can use; torch is only asked where a driver is installed."""
    if not Path("/proc/driver/nvidia/gpus").is_dir() and not Path("/dev/kfd").exists():
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def fingerprint(devices: int) -> str:
    """A key that changes with whatever changes the measurement of this machine as `devices` devices."""
    parts = (
        cpu_name(),
        str(usable_cores()),
        f"{total_memory() / 2**30:.0f} GiB",
        installed("torch"),
        str(devices),
        str(threads(devices)),
        *_gpu_models(),
        os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        str(CALIBRATION_VERSION),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


# Raised when what is measured, or how, changes.
CALIBRATION_VERSION = 3


def _gpu_models() -> tuple[str, ...]:
    """The models of the GPUs from the driver, without torch."""
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return tuple(line.split(":", 1)[1].strip() for f in found for line in _lines(f) if line.startswith("Model"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _first_number(path: Path) -> int:
    """The first number of a control group's file; 0 for `max`, or where there is none."""
    words = " ".join(_lines(path)).split()
    return int(words[0]) if words and words[0].isdigit() else 0
