"""Cluster files: `read_cluster` reads one, `cluster_yaml` writes one that reads back equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import yaml

from placer.cluster.cluster import FLASH_SHARES, Cluster, Curve, Device, Level, Link, Node, Storage
from placer.cluster.hardware_data import aliases, short_names
from placer.cluster.kernels import TorchKernels
from placer.cluster.schema import ClusterEntry
from placer.errors import UsageError
from placer.io.files import read_text
from placer.io.refusals import short
from placer.io.units import written
from placer.io.yaml_document import Data, Location, YamlDocument, close, dotted, parse, validated

# Of a file with mistakes all over no more is said than a reader takes in.
MOST_TOLD, LONGEST_TOLD = 7, 1_000


def read_cluster(path: str) -> Cluster:
    """The cluster of the file `path`. Raises UsageError naming file, line and field of what is wrong."""
    return parse_cluster(read_text(path, "the cluster file"), path)


def parse_cluster(text: str, path: str = "cluster file") -> Cluster:
    """The cluster that `text` describes; `path` names it in errors."""
    document = parse(text, path)
    entry = validated(document, ClusterEntry)
    problems = sorted(_problems(document, entry))
    if problems:
        told = [f"{path}, line {line}: {short(problem, LONGEST_TOLD)}" for line, problem in problems[:MOST_TOLD]]
        more = len(problems) - len(told)
        raise UsageError("\n".join(told + ([f"and {more} problems more"] if more else [])))
    return entry.cluster()


def cluster_yaml(cluster: Cluster) -> str:
    """`cluster` as a cluster file; reading it gives an equal cluster."""
    kinds = _keys(cluster)
    fields: dict[str, Data] = {"name": cluster.name}
    if cluster.measured:
        fields["measured"] = True
    if cluster.notes:
        fields["notes"] = list(cluster.notes)
    fields["devices"] = {key: _device(device, key) for device, key in kinds.items()}
    fields["nodes"] = [_node(node, count, kinds) for node, count in cluster.groups]
    if cluster.levels:
        fields["network"] = [_level(level) for level in cluster.levels]
    if cluster.storage is not None:
        shared = cluster.storage
        fields["storage"] = _storage(shared.storage) | ({"nic": _link(shared.nic)} if shared.nic is not None else {})
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=120)


def _problems(document: YamlDocument, entry: ClusterEntry) -> Iterator[tuple[int, str]]:
    """What is wrong between fields: unknown kinds, missing links, networks that do not join the nodes."""
    total = sum(node.count for node in entry.nodes)
    for i, node in enumerate(entry.nodes):
        here = document.line(("nodes", i))
        for j, devices in enumerate(node.devices):
            if devices.kind not in entry.devices and devices.kind.strip().lower() not in aliases("devices"):
                field: Location = ("nodes", i, "devices", j, "kind")
                like = close(devices.kind, (*entry.devices, *short_names("devices")))
                wrong = f"{short(repr(devices.kind))} is no device of this file or the catalogue; {like}"
                yield document.line(field), f"{dotted(field)}: {wrong}"
        if node.size > 1 and node.link is None:
            yield here, f"nodes[{i}].link is missing: its {node.size} devices need one; add it, as in link: nvlink3"
        if total > 1 and node.nic is None and not entry.network:
            yield here, f"nodes[{i}].nic is missing: {total} nodes need a way to each other; add it, as in nic: ib-ndr"
    yield from _network_problems(document, entry, total)


def _network_problems(document: YamlDocument, entry: ClusterEntry, total: int) -> Iterator[tuple[int, str]]:
    below, last = 1, len(entry.network) - 1
    for i, level in enumerate(entry.network):
        line, name = document.line(("network", i, "nodes")), f"network[{i}]"
        if level.nodes % below:
            yield (
                line,
                f"{name}.nodes is {level.nodes}, no multiple of the {below} nodes of the level below; change one",
            )
        if level.nodes == 0 and i < last:
            yield line, f"{name} ({level.name}) joins all nodes: levels after it are never crossed; give it nodes"
        if i == last and 0 < level.nodes < total:
            yield line, f"{name} ({level.name}) joins {level.nodes} of {total} nodes; add a level without nodes for all"
        below = level.nodes or below


def _keys(cluster: Cluster) -> dict[Device, str]:
    """A key of the file for each kind of device; two kinds of one name are told apart."""
    keys: dict[Device, str] = {}
    for node, _ in cluster.groups:
        for device, _ in node.devices:
            if device not in keys:
                same = sum(other.name == device.name for other in keys)
                keys[device] = f"{device.name} ({same + 1})" if same else device.name
    return keys


def _device(device: Device, key: str) -> Data:
    fields: dict[str, Data] = {"name": device.name} if key != device.name else {}
    fields |= {
        "backend": device.backend,
        "memory": written(device.memory_bytes, "bytes"),
        "memory_bandwidth": written(device.memory_bandwidth, "bandwidth"),
        "memory_share": device.memory_share,
        "rates": {dtype: written(rate, "rate") for dtype, rate in device.rates},
        "launch": written(device.launch_seconds, "seconds"),
        "overhead": written(device.overhead_bytes, "bytes"),
        "efficiency": _curve(device.curve),
    }
    if device.sustained != 1:
        fields["sustained"] = device.sustained
    shares = {
        "flash": device.flash_shares,
        "tuned_flash": device.tuned_shares,
        "first_flash": device.first_flash_shares,
    }
    if set(shares.values()) != {FLASH_SHARES}:
        fields |= {name: [*share] for name, share in shares.items()}
    if device.communication_cores is not None:
        fields["communication_cores"] = device.communication_cores
    if any(device.head_seconds):
        fields["head_seconds"] = [written(own, "seconds") for own in device.head_seconds]
    if device.kernels is not None:
        fields["kernels"] = _kernels(device.kernels)
    if device.op_shares:
        fields["ops"] = {name: [*shares] for name, *shares in device.op_shares}
    if device.multiprocessors:
        fields["multiprocessors"] = device.multiprocessors
    if device.curves:
        fields["efficiency_by_dtype"] = {dtype: _curve(curve) for dtype, curve in device.curves}
    return fields | _source(device.source)


def _kernels(kernels: TorchKernels) -> dict[str, Data]:
    shares = {name: own for name, own in asdict(kernels).items() if name != "host_op_seconds"}
    host: dict[str, Data] = {"host_op": written(kernels.host_op_seconds, "seconds")}
    return host | {name: [*own] if isinstance(own, tuple) else own for name, own in shares.items()}


def _curve(curve: Curve) -> Data:
    points: list[Data] = [[written(flops, "flops"), share] for flops, share in curve.points]
    return {"points": points} | _source(curve.source)


def _link(link: Link) -> dict[str, Data]:
    fields: dict[str, Data] = {
        "name": link.name,
        "latency": written(link.latency_seconds, "seconds"),
        "bandwidth": written(link.bandwidth, "bandwidth"),
    }
    if link.ports != 1:
        fields["ports"] = link.ports
    if link.share != 1:
        fields["share"] = link.share
    if link.collective_share is not None:
        fields["collective_share"] = link.collective_share
    if link.setup_seconds:
        fields["setup"] = written(link.setup_seconds, "seconds")
    return fields | _source(link.source)


def _node(node: Node, count: int, kinds: dict[Device, str]) -> Data:
    fields: dict[str, Data] = {"name": node.name, "count": count}
    fields["devices"] = [{"kind": kinds[device], "count": number} for device, number in node.devices]
    fields["link"] = _link(node.link)
    if node.nic is not None:
        fields["nic"] = _link(node.nic)
    fields |= {"cores": node.cores, "memory": written(node.memory_bytes, "bytes")}
    if node.storage is not None:
        fields["storage"] = _storage(node.storage)
    if node.host is not None:
        bandwidth = written(node.host.memory_bandwidth, "bandwidth")
        fields["host"] = {"link": _link(node.host.link), "memory_bandwidth": bandwidth}
    return fields


def _storage(storage: Storage) -> dict[str, Data]:
    fields: dict[str, Data] = {
        "name": storage.name,
        "latency": written(storage.latency_seconds, "seconds"),
        "read": written(storage.read_bandwidth, "bandwidth"),
        "write": written(storage.write_bandwidth, "bandwidth"),
        "disks": storage.disks,
        "requests": storage.requests,
        "capacity": written(storage.capacity_bytes, "bytes"),
    }
    if storage.random_read_bandwidth is not None:
        fields["random_read"] = written(storage.random_read_bandwidth, "bandwidth")
    return fields | _source(storage.source)


def _level(level: Level) -> Data:
    return {"name": level.name, "nodes": level.nodes, "link": _link(level.link)}


def _source(source: str) -> dict[str, Data]:
    return {"source": source} if source else {}
