"""From what a person writes to a Cluster: a file, this machine, or catalogue names with counts.

cluster.yaml               a cluster file (see examples/)
local, localx4             this machine, measured; as 4 devices (processes)
h100x8*4                   4 nodes of 8
h100x8*2+a100x8            unequal nodes
t4x4*2@100gbe              on a network of one's choice, one port per node; `@4xib-hdr` with four
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil
from pathlib import Path

from pydantic import Field

from placer.cluster import Cluster, Device, Level, Link, Node
from placer.cluster_schema import Bytes, Count, DeviceEntry, Entry, LinkEntry, StorageEntry
from placer.cluster_yaml import read_cluster
from placer.errors import UsageError
from placer.hardware_data import aliases, entries
from placer.yaml_lines import close

_LOCAL = re.compile(r"local(?:x(\d+))?")
_GROUP = re.compile(
    r"(?P<name>.+?)(?:x(?P<devices>\d+))?(?:\*(?P<nodes>\d+))?(?:@(?:(?P<ports>\d+)x)?(?P<network>[\w-]+))?"
)
_FILES = (".yaml", ".yml", ".json")


class NodeType(Entry):
    """The node the catalogue assumes around a kind of device; see hardware/nodes.yaml."""

    section = "nodes"
    most: Count
    link: LinkEntry | None = None
    nic: LinkEntry | None = None
    nics_per_device: float = Field(default=1.0, gt=0)
    cores: Count
    memory: Bytes
    storage: StorageEntry | None = None
    source: str


def load_cluster(spec: str) -> Cluster:
    """The cluster `spec` describes. Raises UsageError for what is no file, no catalogue name, or has zero devices."""
    text = spec.strip()
    if text.lower().endswith(_FILES) or "/" in text or "\\" in text or Path(text).is_file():
        return read_cluster(text)
    local = _LOCAL.fullmatch(text)
    if local is None:
        return _from_names(text)
    if local[1] is not None and int(local[1]) == 0:
        raise UsageError(f"{text!r} asks for zero devices; ask for at least one, as in localx2")
    from placer.calibrate import local_cluster  # measuring needs torch; reading a file or the catalogue does not

    return local_cluster(int(local[1]) if local[1] else None)


def catalogue_device(name: str) -> Device:
    """The catalogue's device of that name or alias. Raises UsageError with what is known."""
    known = aliases("devices")
    if name.lower() not in known:
        raise UsageError(
            f"{name!r} is no device of the catalogue, no cluster file and not local; {close(name.lower(), known)}. "
            "Write h100x8*4 for 4 nodes of 8, or a cluster file"
        )
    key = known[name.lower()]
    return DeviceEntry.model_validate(entries("devices")[key]).device(key)


def _from_names(text: str) -> Cluster:
    """The cluster of `name x devices * nodes` joined by `+`."""
    groups = tuple(_group(part.strip(), text) for part in text.split("+"))
    if sum(count for _, count in groups) > 1 and any(node.nic is None for node, _ in groups):
        bare = next(node for node, _ in groups if node.nic is None)
        raise UsageError(
            f"the catalogue knows no usual network between {bare.name} nodes; name one, as in {text.split('@')[0]}@100gbe "
            f"(known: {', '.join(sorted(entries('links')))}), or write a cluster file"
        )
    notes = tuple(dict.fromkeys(_assumption(node) for node, _ in groups))
    spine = Level(name="fabric", link=_fabric(tuple(node for node, _ in groups)))
    return Cluster(name=text, groups=groups, levels=(spine,) if _several(groups) else (), notes=notes)


def _several(groups: tuple[tuple[Node, int], ...]) -> bool:
    return sum(count for _, count in groups) > 1


def _fabric(nodes: tuple[Node, ...]) -> Link:
    """A network that never is narrower than the widest nic: the catalogue assumes full bisection."""
    nics = [node.nic for node in nodes if node.nic is not None]
    if not nics:
        return nodes[0].link
    widest = max(nics, key=lambda nic: nic.bandwidth)
    return replace(
        widest,
        name="fabric",
        latency_seconds=0.0,
        setup_seconds=0.0,
        source="assumed: full bisection, the hop's latency counted in the nic",
    )


def _group(part: str, text: str) -> tuple[Node, int]:
    """One `name x devices * nodes @ network`."""
    match = _GROUP.fullmatch(part)
    name, match = _split_name(part, match)
    devices, nodes = (int(match[key]) if match[key] else 1 for key in ("devices", "nodes"))
    if devices == 0 or nodes == 0:
        raise UsageError(f"{text!r} asks for zero devices; ask for at least one, as in {name}x1")
    node = _node(name, devices)
    if match["network"]:
        node = replace(node, nic=_network(match["network"], int(match["ports"] or 1), text))
    return node, nodes


def _split_name(part: str, match: re.Match[str] | None) -> tuple[str, re.Match[str]]:
    """The device's name and the counts; `rtx4090` is a name, not 4090 of `rt`."""
    if match is None:
        raise UsageError(
            f"{part!r} is no cluster; write h100x8*4 for 4 nodes of 8, localx4, or the path of a cluster file"
        )
    name = match["name"]
    if match["devices"] and name.lower() not in aliases("devices"):
        longer = re.fullmatch(_GROUP.pattern.replace(".+?", re.escape(f"{name}x{match['devices']}"), 1), part)
        if longer is not None and longer["name"].lower() in aliases("devices"):
            return longer["name"], longer
    return name, match


def _node(name: str, count: int) -> Node:
    """A node of `count` devices of the catalogue's kind `name`."""
    device = catalogue_device(name)
    key = aliases("devices")[name.lower()]
    kind = NodeType.model_validate(entries("nodes")[key])
    if count > kind.most:
        raise UsageError(
            f"a node holds at most {kind.most} {name}; write {name}x{kind.most}*{ceil(count / kind.most)} for several nodes"
        )
    part = count / kind.most
    link = kind.link.link("link") if kind.link is not None else None
    return Node(
        name=key,
        devices=((device, count),),
        link=link
        or Link(name="none", latency_seconds=0.0, bandwidth=device.memory_bandwidth, source="one device in the node"),
        nic=_ports(kind.nic.link("nic"), max(1, ceil(count * kind.nics_per_device))) if kind.nic is not None else None,
        cores=max(1, int(kind.cores * part)),
        memory_bytes=int(kind.memory * part),
        storage=kind.storage.storage() if kind.storage is not None else None,
    )


def _network(name: str, ports: int, text: str) -> Link:
    """`ports` of the catalogue's network `name` as a node's way out."""
    known = aliases("links")
    if name.lower() not in known or ports == 0:
        raise UsageError(f"{text!r}: {name!r} is no network of the catalogue; {close(name.lower(), known)}")
    return _ports(LinkEntry.model_validate(entries("links")[known[name.lower()]]).link(name), ports)


def _ports(nic: Link, ports: int) -> Link:
    """`ports` such nics side by side."""
    return replace(nic, bandwidth=nic.bandwidth * ports, ports=nic.ports * ports)


def _assumption(node: Node) -> str:
    """What the catalogue took a node to be, for the reader of a plan."""
    way_out = f"{node.nic.ports} x {node.nic.name}" if node.nic is not None else "no network"
    devices = ", ".join(f"{count} x {device.name}" for device, count in node.devices)
    return f"assumed node {node.name}: {devices} on {node.link.name}, {way_out}, {node.cores} cores"
