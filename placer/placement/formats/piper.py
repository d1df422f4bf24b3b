"""Reads Piper's JSON: `nodes[].TMPCs` (tensor degree -> variants), `edges[]`, and the machines the file names.

In: the text of a file, and what replaces the file's own machines. Out: a PiperProblem. Checked by shape on the way in.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from placer.errors import UsageError
from placer.io.files import read_text
from placer.placement.formats import PlaceRequest
from placer.placement.published_planners.piper import PiperEdge, PiperNode, PiperProblem, Variant


def read(text: str, name: str, request: PlaceRequest) -> PiperProblem:
    """The problem in `text`, from the file `name`. Raises UsageError saying what is wrong where."""
    if request.free_form or request.objective not in (None, "throughput"):
        raise UsageError(f"{name} is a Piper graph: its stages are contiguous, its objective throughput; ask for those")
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name} is no Piper graph: {where}: {first['msg']}; see the published format") from None
    return PiperProblem(
        nodes=tuple(_node(node) for node in file.nodes),
        edges=tuple(PiperEdge(source=e.sourceId, target=e.destId, bytes=e.communicationCost) for e in file.edges),
        devices=file.maxDevices if request.devices is None else request.devices,
        memory_bytes=file.maxMemoryPerDevice if request.memory is None else request.memory,
        bandwidth=file.bandwidth if request.bandwidth is None else request.bandwidth,
        microbatches=file.mbsInBatch if request.microbatches is None else request.microbatches,
    )


def read_piper(path: str | Path, request: PlaceRequest | None = None) -> PiperProblem:
    """The problem in the file `path`."""
    return read(read_text(path, "the Piper graph"), str(path), request or PlaceRequest())


class _Variant(BaseModel):
    """A way to run a node, as published."""

    model_config = ConfigDict(frozen=True)
    id: str
    timePerSample: NonNegativeFloat  # noqa: N815 - the format's own name, here and below
    parameterSize: NonNegativeFloat  # noqa: N815
    memoryUsageA: NonNegativeFloat  # noqa: N815
    memoryUsageB: NonNegativeFloat  # noqa: N815
    syncTimeFw: dict[int, NonNegativeFloat]  # noqa: N815
    syncTimeBw: dict[int, NonNegativeFloat]  # noqa: N815


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
    communicationCost: NonNegativeFloat  # noqa: N815


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
