"""Whether a checkpoint is of a plan's model: asked without ranks, before anything is run or written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from placer import tracer
from placer.errors import StalePlanError, UsageError
from placer.plans.plan import Plan
from placer.runtime.checkpoint.folder import latest, marker_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """A checkpoint that a plan can go on from: after `step` steps, the data at batch `position`; `bytes` of state."""

    path: Path
    step: int
    position: int
    bytes: int


def planned_model(plan: Plan) -> nn.Module:
    """The model of a plan without weights. Raises UsageError where only its caller has it."""
    return tracer.resolve(plan.model).build("meta")


def last_fitting(folder: Path, plan: Plan) -> Fitting:
    """The last whole checkpoint of `folder` (or `folder` itself), which holds every weight of the plan's model.

    Raises UsageError where there is none or it lacks a weight, StalePlanError where it is of another model.
    """
    path = folder if marker_of(folder) is not None else latest(folder)
    marker = None if path is None else marker_of(path)
    if path is None or marker is None:
        raise UsageError(f"{folder} holds no complete checkpoint; give the folder of `placer execute --checkpoint`")
    if marker.fingerprint != plan.model.fingerprint:
        raise StalePlanError(f"the checkpoint {path} is of another model than the plan's; give the plan of its run")
    held = FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {name: entry for name, entry in held.items() if isinstance(entry, TensorStorageMetadata)}
    lacking = [
        name
        for name in plan.graph.parameters
        if f"model.{name}" not in tensors and not plan.graph.parameters[name].buffer
    ]
    if lacking:
        raise UsageError(f"the checkpoint {path} lacks {', '.join(lacking[:3])}; give one of this model")
    total = sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in tensors.values())
    return Fitting(path=path, step=marker.step, position=marker.position, bytes=total)
