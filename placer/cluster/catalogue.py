"""From what a person writes to a Cluster: a file, this machine, or catalogue names with counts.

cluster.yaml               a cluster file (see examples/)
local, localx4             this machine, measured; as 4 devices (processes)
h100x8*4                   4 nodes of 8
h100x8*2+a100x8            unequal nodes
t4x4*2@100gbe              on a network of one's choice, one port per node; `@4xib-hdr` with four
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

from pydantic import Field

from placer.cluster.cluster import Cluster, Device, Host, Level, Link, Node
from placer.cluster.cluster_file import read_cluster
from placer.cluster.hardware_data import aliases, entries, short_names
from placer.cluster.schema import Bytes, Count, DeviceEntry, FileEntry, HostEntry, LinkEntry, StorageEntry, link_of_one
from placer.errors import NoNetworkError, UsageError
from placer.io.yaml_document import close

_LOCAL = re.compile(r"local(?:x(\d{1,9}))?")
_COUNTS = r"(?:x(?P<devices>\d{1,9}))?(?:\*(?P<nodes>\d{1,9}))?(?:@(?:(?P<ports>\d{1,9})x)?(?P<network>[\w-]+))?"
_FILES = (".yaml", ".yml", ".json")


class NodeType(FileEntry):
    """The node the catalogue assumes around a kind of device; see hardware/nodes.yaml."""

    section = "nodes"
    most: Count
    link: LinkEntry | None = None
    nic: LinkEntry | None = None
    nics_per_device: float = Field(default=1.0, gt=0)
    cores: Count
    memory: Bytes
    storage: StorageEntry | None = None
    host: HostEntry | None = None
    source: str


def load_cluster(spec: str, progress: Callable[[str], None] | None = None) -> Cluster:
    """The cluster `spec` describes; `progress` is told what is measured where this machine must be.

    Raises UsageError for what is no file, no catalogue name, or has zero devices.
    """
    text = spec.strip()
    if text.lower().endswith(_FILES) or "/" in text or "\\" in text or Path(text).is_file():
        return read_cluster(text)
    local = _LOCAL.fullmatch(text)
    if local is None:
        return _from_names(text)
    if local[1] is not None and int(local[1]) == 0:
        raise UsageError(f"{text!r} asks for zero devices; ask for at least one, as in localx2")
    from placer.cluster.calibrate import (
        local_cluster,  # measuring needs torch; reading a file or the catalogue does not
    )

    return local_cluster(int(local[1]) if local[1] else None, progress)


def catalogue_device(name: str) -> Device:
    """The catalogue's device of that name or alias. Raises UsageError with what is known."""
    known = aliases("devices")
    if name.lower() not in known:
        like = close(name.lower(), short_names("devices"))
        raise UsageError(
            f"{name!r} is no device of the catalogue, no cluster file and not local; {like}. "
            "Write h100x8*4 for 4 nodes of 8, localx4, or the path of a cluster file"
        )
    key = known[name.lower()]
    return DeviceEntry.model_validate(entries("devices")[key]).device(key)


def _from_names(text: str) -> Cluster:
    """The cluster of `name x devices * nodes @ network` joined by `+`."""
    groups = tuple(_group(part.strip(), text) for part in text.split("+"))
    nodes = tuple(node for node, _ in groups)
    several = sum(count for _, count in groups) > 1
    if several:
        _require_network(nodes, text)
    return Cluster(
        name=text,
        groups=groups,
        levels=(Level(name="fabric", link=_fabric(nodes)),) if several else (),
        notes=tuple(dict.fromkeys(_assumption(node) for node in nodes)),
    )


def _require_network(nodes: tuple[Node, ...], text: str) -> None:
    without = [node.name for node in nodes if node.nic is None]
    if without:
        raise NoNetworkError(
            f"{text!r}: the catalogue knows no usual network between {without[0]} nodes; name one, as in "
            f"{text.split('+')[0]}@100gbe, or write a cluster file. Networks: {', '.join(_networks())}"
        )


def _fabric(nodes: tuple[Node, ...]) -> Link:
    """A network nowhere narrower than the widest nic: the catalogue assumes full bisection."""
    widest = max((node.nic for node in nodes if node.nic is not None), key=lambda nic: nic.bandwidth * nic.ports)
    source = "assumed: full bisection; the hop's latency is counted in the nic"
    return replace(widest, name="fabric", latency_seconds=0.0, setup_seconds=0.0, source=source)


def _group(part: str, text: str) -> tuple[Node, int]:
    """One `name x devices * nodes @ network`."""
    match = _match(part)
    devices, nodes = (int(match[key]) if match[key] else 1 for key in ("devices", "nodes"))
    if devices == 0 or nodes == 0:
        raise UsageError(f"{text!r} asks for zero devices; ask for at least one, as in {match['name']}x1")
    node = _node(match["name"], devices)
    if match["network"]:
        node = replace(node, nic=_network(match["network"], int(match["ports"] or 1), text))
    return node, nodes


def _match(part: str) -> re.Match[str]:
    """The name and the counts; `rtx4090` is a name, not 4090 of `rt`, and `mi300x` is one too."""
    for names in (r"[\w-]+?", r"[\w-]+"):
        match = re.fullmatch(f"(?P<name>{names}){_COUNTS}", part)
        if match is not None and match["name"].lower() in aliases("devices"):
            return match
    if match is None or match["name"] == "":
        raise UsageError(f"{part!r} is no cluster; write h100x8*4, localx4, or the path of a cluster file")
    return match


def _node(name: str, count: int) -> Node:
    """A node of `count` devices of the catalogue's kind `name`."""
    device = catalogue_device(name)
    key = aliases("devices")[name.lower()]
    kind = NodeType.model_validate(entries("nodes")[key])
    if count > kind.most:
        nodes = f"{name}x{kind.most}*{ceil(count / kind.most)}"
        raise UsageError(f"a node holds at most {kind.most} {name}, {count} were asked for; for several write {nodes}")
    return Node(
        name=key,
        devices=((device, count),),
        link=kind.link.link("link") if kind.link is not None else link_of_one(device),
        nic=_ports(kind.nic.link("nic"), ceil(count * kind.nics_per_device)) if kind.nic is not None else None,
        cores=max(1, kind.cores * count // kind.most),
        memory_bytes=kind.memory * count // kind.most,
        storage=kind.storage.storage() if kind.storage is not None else None,
        host=_host(kind, count) if kind.host is not None else None,
    )


def _host(kind: NodeType, count: int) -> Host:
    """The part of the host's memory bandwidth that `count` devices have, like its cores and memory."""
    assert kind.host is not None
    host = kind.host.host()
    return replace(host, memory_bandwidth=host.memory_bandwidth * count / kind.most)


def _network(name: str, ports: int, text: str) -> Link:
    """`ports` of the catalogue's network `name` as a node's way out."""
    if name.lower() not in aliases("links") or ports == 0:
        raise UsageError(
            f"{text!r}: {ports} x {name!r} is no network of the catalogue; {close(name.lower(), _networks())}"
        )
    key = aliases("links")[name.lower()]
    return _ports(LinkEntry.model_validate(entries("links")[key]).link(name), ports)


def _networks() -> tuple[str, ...]:
    """The catalogue's links that join nodes."""
    return tuple(name for name in entries("links") if not name.startswith(("pcie", "nvlink", "xgmi")))


def _ports(nic: Link, ports: int) -> Link:
    """`ports` such nics side by side."""
    return replace(nic, ports=nic.ports * ports)


def _assumption(node: Node) -> str:
    """What the catalogue took a node to be, for the reader of a plan."""
    way_out = f"{node.nic.ports} x {node.nic.name}" if node.nic is not None else "no network"
    devices = ", ".join(f"{count} x {device.name}" for device, count in node.devices)
    return f"assumed node {node.name}: {devices} on {node.link.name}, {way_out}, {node.cores} cores"
