"""Whether a checkpoint is of a plan's model: asked without ranks, before anything is run or written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from placer import tracer
from placer.errors import StalePlanError, UsageError
from placer.plans.plan import Plan
from placer.runtime.checkpoint.folder import MARKER, candidates, incomplete, read_marker, unreadable, without_checksums
from placer.runtime.storage.reader import CheckpointReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """A checkpoint that a plan can go on from: after `step` steps, the data at batch `position`; `bytes` of state.

    notes: what to tell of it and of those passed over.
    """

    reader: CheckpointReader
    path: Path
    step: int
    position: int
    bytes: int
    notes: tuple[str, ...] = ()


def planned_model(plan: Plan) -> nn.Module:
    """The model of a plan without weights. Raises UsageError where only its caller has it."""
    return tracer.resolve(plan.model).build("meta")


def last_fitting(folder: Path, plan: Plan) -> Fitting:
    """The last whole checkpoint of `folder` (or `folder` itself), which holds every weight of the plan's model.

    Raises UsageError where there is none or it lacks a weight, StalePlanError where it is of another model.
    """
    path, passed = _readable(folder)
    marker = read_marker(path)
    if marker.fingerprint != plan.model.fingerprint:
        raise StalePlanError(f"the checkpoint {path} is of another model than the plan's; give the plan of its run")
    reader = CheckpointReader(path, marker.files)
    held = reader.read_index().state_dict_metadata
    tensors = {name: entry for name, entry in held.items() if isinstance(entry, TensorStorageMetadata)}
    lacking = [
        name
        for name in plan.graph.parameters
        if f"model.{name}" not in tensors and not plan.graph.parameters[name].buffer
    ]
    if lacking:
        raise UsageError(f"the checkpoint {path} lacks {', '.join(lacking[:3])}; give one of this model")
    total = sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in tensors.values())
    notes = (*passed, *without_checksums(path))
    return Fitting(reader=reader, path=path, step=marker.step, position=marker.position, bytes=total, notes=notes)


def _readable(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The last readable checkpoint of `folder`, or `folder` itself, and what is wrong with later ones."""
    found = [folder] if (folder / MARKER).is_file() else candidates(folder)
    wrong: list[str] = []
    for path in found:
        why = unreadable(path)
        if why is None:
            parts = incomplete(folder, read_marker(path).step) if path != folder else ()
            return path, (*(f"{one}; {path.name} is taken instead" for one in wrong), *parts)
        wrong.append(f"the checkpoint {path} cannot be read: {why}")
    raise UsageError(
        f"{'; '.join(wrong)}; give another checkpoint"
        if (wrong := [*wrong, *incomplete(folder)])
        else f"{folder} holds no complete checkpoint; give the folder of `placer execute --checkpoint`"
    )
