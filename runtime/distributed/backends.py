"""What ranks communicate by: gloo for what lies on hosts, NCCL for what lies on GPUs, or MPI where it is asked for.

Whether it is there, and goes with the plan, is asked before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import distributed as dist

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.distributed.mpi.started import INSTALL, installed, under_mpirun

#: `auto`: gloo for ranks on CPUs, NCCL for those on GPUs, and gloo beside it for what lies on their hosts.
BackendName = Literal["auto", "gloo", "mpi", "nccl"]


def backend_of(plan: Plan, rank: int, asked: BackendName = "auto") -> str:
    """What a rank communicates by, in torch's words: gloo for what lies on hosts, nccl for what lies on its GPU.

    In a world of both kinds CPUs say that they have none: NCCL cannot be there where no GPU is. MPI is registered with
    torch, which begins it.
    """
    if asked == "mpi":
        from placer.runtime.distributed.mpi.process_group import NAME, register  # an extra

        register()
        return NAME
    if plan.cluster.devices[plan.ranks[rank]].backend == "cuda":
        return "cpu:gloo,cuda:nccl"
    return "cpu:gloo" if plan.cluster.unlike(plan.ranks) else "gloo"


def require_backend(plan: Plan, asked: BackendName, plan_path: str = "plan.json", command: str = "execute") -> None:
    """Raise UsageError where `plan` cannot communicate by what `command` asked for here: why, and what to do."""
    require_fit(plan, asked)
    reason = "" if asked == "auto" else ABSENT[asked](mpirun_command(plan, plan_path, command))
    if reason:
        raise UsageError(f"--backend {asked} was asked for, but {reason}")


def require_fit(plan: Plan, asked: BackendName) -> None:
    """Raise UsageError where what was asked for does not go with where the plan's tensors lie, on any machine."""
    reason = "" if asked == "auto" else _unfit(plan, asked)
    if reason:
        raise UsageError(f"--backend {asked} was asked for, but {reason}")


def mpirun_command(plan: Plan, plan_path: str, command: str = "execute") -> str:
    """The command that starts `plan` by mpirun on one machine."""
    return f"mpirun -n {plan.world_size} placer {command} {plan_path}"


def _unfit(plan: Plan, asked: BackendName) -> str:
    """Why it does not go with where the plan's tensors lie; "" where it does."""
    kinds = {plan.cluster.devices[device].backend for device in plan.ranks}
    wanted = "cuda" if asked == "nccl" else "cpu"
    if kinds == {wanted}:
        return ""
    if len(kinds) > 1:
        return "the plan has ranks on GPUs and on CPUs, each of which has its own; leave --backend out"
    lies = "GPUs, whose tensors NCCL moves" if kinds == {"cuda"} else "CPUs, whose tensors NCCL cannot move"
    return f"the plan's ranks are on {lies}; leave --backend out"


def _no_gloo(_: str) -> str:
    return "" if dist.is_gloo_available() else f"torch {torch.__version__} was built without gloo; install another one"


def _no_nccl(_: str) -> str:
    return "" if dist.is_nccl_available() else f"torch {torch.__version__} was built without NCCL; install one for CUDA"


def _no_mpi(command: str) -> str:
    if not installed():
        return f"mpi4py is not installed (torch's wheels have no MPI of their own); {INSTALL}"
    if under_mpirun():
        return ""
    return f"mpirun did not start this process, which MPI needs; run: {command} --backend mpi"


ABSENT: Mapping[BackendName, Callable[[str], str]] = {"gloo": _no_gloo, "nccl": _no_nccl, "mpi": _no_mpi}
