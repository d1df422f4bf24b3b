"""What is installed, what this machine is, and what would therefore work. Looks only; starts and changes nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import psutil

CORE = ("torch", "transformers", "networkx", "ortools", "numpy", "pydantic", "PyYAML", "typer", "rich", "psutil")
# extra -> the distributions it brings, as in pyproject.toml.
EXTRAS = {
    "genetic": ("deap",),
    "rl": ("stable-baselines3", "sb3-contrib", "gymnasium"),
    "deepspeed": ("deepspeed",),
    "report": ("tensorboard",),
    "data": ("pyarrow",),
}
# A rank imports torch and transformers: measured 0.6 GiB resident (torch 2.13, transformers 5.23, November 2026).
RANK_BYTES = 600 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the examination: what was looked at, what was found, whether it is fine, what to do if not."""

    group: str
    name: str
    found: str
    fine: bool = True
    advice: str = ""


def examine() -> tuple[Finding, ...]:
    """Every finding, in the order of reading."""
    return (*_installed(), *_machine(), *_abilities())


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _installed() -> list[Finding]:
    found = [_distribution("installed", name, name, f"pip install {name}") for name in ("placer-planner", *CORE)]
    for extra, names in EXTRAS.items():
        missing = [name for name in names if _version(name) is None]
        what = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        found.append(
            Finding(
                group="extras",
                name=extra,
                found=what or "not installed",
                advice=f"optional: pip install 'placer-planner[{extra}]'" if missing else "",
            )
        )
    return found


def _distribution(group: str, name: str, distribution: str, advice: str) -> Finding:
    found = _version(distribution)
    return Finding(
        group=group, name=name, found=found or "missing", fine=found is not None, advice="" if found else advice
    )


def _machine() -> list[Finding]:
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [
        Finding(
            group="machine",
            name="system",
            found=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        ),
        Finding(group="machine", name="cores", found=str(cores)),
        Finding(
            group="machine",
            name="memory",
            found=f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB free",
            fine=memory.available > 2 * RANK_BYTES,
            advice="" if memory.available > 2 * RANK_BYTES else "two ranks need about 1.2 GiB; close something",
        ),
        *_gpus(),
        _loopback(),
    ]


def _gpus() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch  # heavy: only where it is asked about

    if not torch.cuda.is_available():
        return [Finding(group="machine", name="GPUs", found="none that this torch can use")]
    return [
        Finding(group="machine", name=f"GPU {index}", found=_gpu(torch.cuda.get_device_properties(index)))
        for index in range(torch.cuda.device_count())
    ]


def _gpu(properties: object) -> str:
    name, memory = getattr(properties, "name", "?"), getattr(properties, "total_memory", 0)
    return f"{name}, {memory / 2**30:.0f} GiB"


def _loopback() -> Finding:
    """Ranks on one machine meet at a port of the loopback interface."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding(
            group="machine", name="loopback", found=str(error), fine=False, advice="ranks cannot meet; allow 127.0.0.1"
        )
    return Finding(group="machine", name="loopback", found="a port can be bound")


def _abilities() -> list[Finding]:
    torch_here = _version("torch") is not None
    return [
        Finding(group="would work", name="read, check, simulate a plan", found="yes"),
        _ability(
            "capture a model and plan", torch_here and _version("ortools") is not None, "install torch and ortools"
        ),
        _ability("execute on processors (gloo)", torch_here and _gloo(), "this torch was built without gloo"),
        _ability("execute on GPUs (NCCL)", torch_here and _nccl(), "needs a GPU and a CUDA build of torch"),
        _ability("torchrun on the PATH", shutil.which("torchrun") is not None, "use python -m torch.distributed.run"),
        _ability("placer on the PATH", shutil.which("placer") is not None, "use python -m placer"),
    ]


def _ability(name: str, able: bool, advice: str) -> Finding:
    return Finding(group="would work", name=name, found="yes" if able else "no", advice="" if able else advice)


def _gloo() -> bool:
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_gloo_available()


def _nccl() -> bool:
    import torch

    return torch.cuda.is_available() and torch.distributed.is_nccl_available()
