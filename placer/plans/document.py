"""plan.json as a document: what it leaves out, its digest, and what of it is not known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from placer.cluster.cluster import Cluster
from placer.graph import Graph
from placer.plans.settings import RunSettings

# What the rest of the document says, in plan.json only: whether somebody changed it.
DIGEST = "digest"
# Settings that plan.json leaves out where they have these values: it is what it was before there were others.
UNASKED = {"gradient_compression": "none", "stack": "torch", "fused_loss": True}


def unsaid(settings: RunSettings, cluster: Cluster, graph: Graph) -> dict[str, Any]:
    """What plan.json leaves out, as pydantic excludes it: what is not asked for, and what no device or input has."""
    found: dict[str, Any] = {}
    if usual := {name for name, value in UNASKED.items() if getattr(settings, name) == value}:
        found["settings"] = usual
    if all(device.communication_cores is None for node, _ in cluster.groups for device, _ in node.devices):
        devices = {"__all__": {0: {"communication_cores"}}}
        found["cluster"] = {"groups": {"__all__": {0: {"devices": devices}}}}
    if all(entry.parts is None for entry in graph.inputs):
        found["graph"] = {"inputs": {"__all__": {"parts"}}}
    return found


def digest(document: JsonValue) -> str:
    """Of what a document says, however it is laid out."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def unknown_fields(found: JsonValue, known: JsonValue, where: tuple[str, ...]) -> Iterator[str]:
    """The fields of `found` that `known`, the same plan written anew, does not have."""
    if isinstance(found, dict) and isinstance(known, dict):
        for name, value in found.items():
            if name in known:
                yield from unknown_fields(value, known[name], (*where, name))
            elif (*where, name) != (DIGEST,):
                yield ".".join((*where, name))
    elif isinstance(found, list) and isinstance(known, list):
        for index, (value, same) in enumerate(zip(found, known, strict=False)):
            yield from unknown_fields(value, same, (*where, str(index)))
