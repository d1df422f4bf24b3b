"""Reads Piper's JSON: `nodes[].TMPCs` (tensor degree -> variants), `edges[]`, and the machines the file names.

In: a path, and what replaces the file's own machines. Out: a PiperProblem. Checked by shape on the way in.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from placer.errors import UsageError
from placer.files import read_text
from placer.placement.piper import PiperEdge, PiperNode, PiperProblem, Variant


def read_piper(
    path: str | Path,
    *,
    devices: int | None = None,
    memory_bytes: float | None = None,
    bandwidth: float | None = None,
    microbatches: int | None = None,
) -> PiperProblem:
    """The problem in `path`; what is given replaces the file's own. Raises UsageError saying what is wrong where."""
    try:
        file = _File.model_validate_json(read_text(path, "the Piper graph"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path} is no Piper graph: {where}: {first['msg']}; see the published format") from None
    return PiperProblem(
        nodes=tuple(_node(node) for node in file.nodes),
        edges=tuple(PiperEdge(source=e.sourceId, target=e.destId, bytes=e.communicationCost) for e in file.edges),
        devices=file.maxDevices if devices is None else devices,
        memory_bytes=file.maxMemoryPerDevice if memory_bytes is None else memory_bytes,
        bandwidth=file.bandwidth if bandwidth is None else bandwidth,
        microbatches=file.mbsInBatch if microbatches is None else microbatches,
    )


class _Variant(BaseModel):
    """A way to run a node, as published."""

    model_config = ConfigDict(frozen=True)
    id: str
    timePerSample: float  # noqa: N815 - the format's own name, here and below
    parameterSize: float  # noqa: N815
    memoryUsageA: float  # noqa: N815
    memoryUsageB: float  # noqa: N815
    syncTimeFw: dict[int, float]  # noqa: N815
    syncTimeBw: dict[int, float]  # noqa: N815


class _Node(BaseModel):
    """A node, as published."""

    model_config = ConfigDict(frozen=True)
    id: int
    name: str = ""
    TMPCs: dict[int, tuple[_Variant, ...]]


class _Edge(BaseModel):
    """An edge, as published."""

    model_config = ConfigDict(frozen=True)
    sourceId: int  # noqa: N815
    destId: int  # noqa: N815
    communicationCost: float  # noqa: N815


class _File(BaseModel):
    """The file, as published."""

    model_config = ConfigDict(frozen=True)
    maxDevices: int  # noqa: N815
    maxMemoryPerDevice: float  # noqa: N815
    bandwidth: float
    mbsInBatch: int  # noqa: N815
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]


def _node(node: _Node) -> PiperNode:
    """A node with its degrees in ascending order."""
    variants = sorted((degree, tuple(_variant(one) for one in found)) for degree, found in node.TMPCs.items())
    return PiperNode(id=node.id, name=node.name, variants=tuple(variants))


def _variant(variant: _Variant) -> Variant:
    """A variant in our words."""
    return Variant(
        name=variant.id,
        time=variant.timePerSample,
        parameter_bytes=variant.parameterSize,
        a_bytes=variant.memoryUsageA,
        b_bytes=variant.memoryUsageB,
        forward_bytes=tuple(sorted(variant.syncTimeFw.items())),
        backward_bytes=tuple(sorted(variant.syncTimeBw.items())),
    )
