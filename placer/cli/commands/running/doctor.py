"""Say what is installed, what this machine is, and what would work.

Example: placer doctor
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.options import Json, print_result
from placer.cluster.calibrate import Machine, describe_machine
from placer.cluster.threads import advised_processes, host_threads, topology
from placer.io.usercode import said
from placer.io.versions import installed
from placer.report.printing import table, titled


def run(json: Json = False) -> None:
    """Examine, print; exit 1 where something needed is missing."""
    findings = examine()
    print_result(
        _view(findings),
        {
            "fine": all(finding.fine for finding in findings),
            "findings": [asdict(finding) for finding in findings],
        },
        json,
    )
    if not all(finding.fine for finding in findings):
        raise typer.Exit(1)


def _view(findings: tuple[Finding, ...]) -> RenderableType:
    groups: list[RenderableType] = []
    for group in dict.fromkeys(finding.group for finding in findings):
        view = table("", "found", "", left=3)
        for finding in findings:
            if finding.group == group:
                view.add_row(
                    finding.name, finding.found, Text(finding.advice, style="" if finding.fine else "bold red")
                )
        groups.append(titled(group, view))
    return Group(*groups)


CORE = (
    "placer-planner", "torch", "transformers", "networkx", "ortools", "numpy", "pydantic", "PyYAML", "typer", "rich",
    "psutil", "safetensors",
)  # fmt: skip
# What was compiled for one torch and may be installed beside another; what transformers imports to make any model.
LOADED = {"vision": "torchvision"}
CAPTURED = "transformers.models.gpt2.modeling_gpt2"
MISSING = "none"  # what `installed` says of a distribution that is not there
# A rank that has imported torch and transformers holds 0.6 GiB (torch 2.13, transformers 5.23, November 2026).
RANK_BYTES = 600 * 2**20
GIB = 2**30


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
    core = tuple(_core(name) for name in CORE)
    if installed("torch") == MISSING:
        return core
    machine = describe_machine()
    return (*core, *_extras(machine), *_machine(machine), *_abilities(machine))


def _core(name: str) -> Finding:
    found = installed(name)
    fine = found != MISSING
    return Finding(group="installed", name=name, found=found, fine=fine, advice="" if fine else f"pip install {name}")


def _extras(machine: Machine) -> Iterator[Finding]:
    for extra, present in machine.extras:
        advice = "" if present else f"optional: pip install 'placer-planner[{extra}]'"
        broken = _broken(LOADED[extra]) if present and extra in LOADED else ""
        yield Finding(
            group="extras", name=extra, found="does not load" if broken else "yes" if present else "no",
            fine=not broken, advice=broken or advice,
        )  # fmt: skip


def _broken(module: str) -> str:
    """Why a module that is installed does not load, "" where it does."""
    try:
        import_module(module)
    except Exception as error:  # a library compiled for another torch raises whatever it likes
        return f"import {module}: {said(error)}"
    return ""


def _machine(machine: Machine) -> Iterator[Finding]:
    yield Finding(group="machine", name="system", found=f"{machine.system}, Python {machine.python}")
    yield Finding(group="machine", name="processor", found=machine.cpu)
    yield Finding(group="machine", name="cores", found=str(machine.cores))
    host = topology()
    told = " and ".join(str(len(socket)) for socket in host.sockets)
    yield Finding(group="machine", name="sockets", found=f"{len(host.sockets)}, of {told} physical cores")
    advised = host_threads(host, min(advised_processes(host), machine.cores), machine.cores)
    yield Finding(group="machine", name="best on processors", found=str(advised))
    room = machine.available_bytes > 2 * RANK_BYTES
    yield Finding(
        group="machine",
        name="memory",
        found=f"{machine.memory_bytes / GIB:.1f} GiB, {machine.available_bytes / GIB:.1f} GiB free",
        fine=room,
        advice="" if room else "two ranks need about 1.2 GiB; end something",
    )
    for index, gpu in enumerate(machine.gpus):
        yield Finding(group="machine", name=f"GPU {index}", found=f"{gpu.name}, {gpu.memory_bytes / GIB:.0f} GiB")
    yield Finding(group="machine", name="backends of torch", found=", ".join(machine.backends) or "none")
    if not machine.gpus:
        yield Finding(group="machine", name="GPUs", found="none that this torch can use")
    yield _loopback()


def _loopback() -> Finding:
    """Ranks on one machine meet at a port of the loopback interface."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
    except OSError as error:
        advice = "ranks cannot meet; allow 127.0.0.1"
        return Finding(group="machine", name="loopback", found=str(error), fine=False, advice=advice)
    return Finding(group="machine", name="loopback", found="a port can be bound")


def _abilities(machine: Machine) -> Iterator[Finding]:
    yield _ability("read, check, simulate a plan", True, "")
    solver = installed("ortools") != MISSING and installed("transformers") != MISSING
    broken = _broken(CAPTURED) if solver else "install transformers and ortools"
    yield _ability("capture a model and plan", not broken, broken)
    yield _ability("execute on processors (gloo)", "gloo" in machine.backends, "this torch was built without gloo")
    gpus = bool(machine.gpus) and "nccl" in machine.backends
    yield _ability("execute on GPUs (NCCL)", gpus, "needs a GPU and a torch built for it")
    yield _over_mpi()
    yield _ability("torchrun on the PATH", shutil.which("torchrun") is not None, "or: python -m torch.distributed.run")
    yield _ability("placer on the PATH", shutil.which("placer") is not None, "or: python -m placer")


def _over_mpi() -> Finding:
    """By mpi4py, as torch's wheels have no MPI of their own; only where it is asked for."""
    from placer.runtime.distributed.mpi import started  # the runtime needs torch

    lacks = "" if started.installed() else "mpi4py is not installed"
    lacks = lacks or ("" if started.mpirun() else "there is no mpirun beside this Python or on the PATH")
    return _ability("execute over MPI (--backend mpi)", not lacks, f"{lacks}; optional: {started.INSTALL}")


def _ability(name: str, able: bool, advice: str) -> Finding:
    return Finding(group="would work", name=name, found="yes" if able else "no", advice="" if able else advice)
