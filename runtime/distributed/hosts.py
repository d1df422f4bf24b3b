"""The hosts that ranks were started on, put into the order of the plan's nodes, or refused.

torchrun numbers hosts as they come (`--node-rank`, a batch system's order); a plan means a certain rank to run on a
certain kind of host. Every rank says where it is; rank 0 finds for each host a node of the plan that it can stand for:
as many ranks, the same GPUs by name. Where hosts are in another order, whole hosts change places, before the process
group is made. Hosts that cannot be told apart by their devices say what they are by `PLACER_NODE`, the name of a node
of the cluster file.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import networkx
import torch
from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]  # torch exports it unsaid

from placer.cluster.cluster import Device
from placer.errors import ExecutionError, UsageError
from placer.io.terminal import harmless
from placer.plans.plan import Plan

NODE = "PLACER_NODE"
# Parts of a GPU's name that do not say which chip it is: how it is mounted, and its kind of memory.
_MOUNT = re.compile(r"(SXM|HBM|PCIE|NVL|DDR)\d*[A-Z]?\d*$")
_SIZE = re.compile(r"\d+GI?B$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where torchrun started a rank: which host of those that it counts, what that is called, and its GPUs by name.

    node: the name of the plan's node that it says to be; empty where it says none.
    """

    rank: int
    group: int
    host: str
    node: str
    gpus: tuple[str, ...]


def on_several_hosts() -> bool:
    """Whether torchrun was started more than once for this run: it started fewer ranks here than there are."""
    told = [os.environ.get(name) for name in ("RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    return None not in told and told[2] != told[3]


def this_place() -> RankPlace:
    """Where this process is, by the environment that torchrun made."""
    gpus = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return RankPlace(
        rank=int(os.environ["RANK"]), group=int(os.environ["GROUP_RANK"]), host=socket.gethostname(),
        node=os.environ.get(NODE, ""), gpus=gpus,
    )  # fmt: skip


def rank_in_plan(plan: Plan, store: Store) -> int:
    """The plan's rank of this process, which says so in RANK from then on; all ranks of the run call it.

    Raises UsageError, on every rank, where the hosts cannot stand for the plan's nodes, ExecutionError where a rank
    does not come.
    """
    if not on_several_hosts():
        return int(os.environ["RANK"])
    place = this_place()
    store.set(f"place/{place.rank}", json.dumps(asdict(place)))
    try:
        if place.rank == 0:
            store.set("order", json.dumps(_order_or_why(plan, store)))
        answer = json.loads(store.get("order"))
    except DistStoreError:
        raise ExecutionError("not all ranks said where they are; see what the others printed") from None
    if "why" in answer:
        raise UsageError(answer["why"])
    rank: int = answer["order"][place.rank]
    os.environ["RANK"] = str(rank)
    return rank


def _order_or_why(plan: Plan, store: Store) -> dict[str, object]:
    told = [json.loads(store.get(f"place/{rank}")) for rank in range(plan.world_size)]
    places = [RankPlace(**one | {"gpus": tuple(one["gpus"])}) for one in told]
    try:
        order = ranks_in_order(plan, places)
    except UsageError as error:
        return {"why": str(error)}
    if order != tuple(range(plan.world_size)):
        print("placer: hosts were started in another order than the plan's; ranks follow the plan", file=sys.stderr)
    return {"order": order}


def ranks_in_order(plan: Plan, places: Sequence[RankPlace]) -> tuple[int, ...]:
    """For each rank that was started the plan's rank that it is to be.

    As they are, where that is right already. Raises UsageError where no order is. Hosts of CPUs alone that say nothing
    of themselves may stand for any node, and for parts of nodes: then ranks stay as they are, with a note.
    """
    hosts: dict[int, list[RankPlace]] = {}
    for place in places:
        hosts.setdefault(place.group, []).append(place)
    nodes: dict[int, list[int]] = {}
    for rank, device in enumerate(plan.ranks):
        nodes.setdefault(plan.cluster.node_of[device], []).append(rank)
    fitting = {(host, node) for host in hosts for node in nodes if _fits(plan, nodes[node], hosts[host])}
    matched = _as_they_are(plan, hosts, nodes, fitting) or _matched(hosts, nodes, fitting)
    if matched is None:
        if plan.cluster.backends == {"cpu"} and not any(place.node for place in places):
            _note(plan, hosts, nodes)
            return tuple(range(len(places)))
        raise UsageError(_told(plan, hosts, nodes))
    order = [0] * len(places)
    for host, node in matched.items():
        started = sorted(place.rank for place in hosts[host])
        for rank, planned in zip(started, nodes[node], strict=True):
            order[rank] = planned
    return tuple(order)


def _fits(plan: Plan, ranks: Sequence[int], host: Sequence[RankPlace]) -> bool:
    """Whether a host can stand for the node of these ranks of the plan."""
    node = plan.cluster.node_of[plan.ranks[ranks[0]]]
    said = {place.node for place in host} - {""}
    if len(ranks) != len(host) or said - {plan.cluster.nodes[node].name}:
        return False
    first, chips, gpus = plan.cluster.node_of.index(node), plan.cluster.devices, host[0].gpus
    for device in (plan.ranks[rank] for rank in ranks):
        if chips[device].backend == "cuda":
            number = sum(chips[before].backend == "cuda" for before in range(first, device))
            if number >= len(gpus) or not same_chip(chips[device], gpus[number]):
                return False
    return True


def same_chip(planned: Device, name: str) -> bool:
    """Whether a GPU that calls itself `name` may be of a planned kind: chips and sizes of memory that both name agree.

    A kind whose name says nothing (`card`) may be any.
    """
    (chips, sizes), (found, their_sizes) = _words(planned.name), _words(name)
    if sizes and their_sizes and sizes.isdisjoint(their_sizes):
        return False
    return not (chips and found and chips.isdisjoint(found))


def _words(name: str) -> tuple[set[str], set[str]]:
    """The chips and the sizes of memory that a name says: `NVIDIA A100-SXM4-80GB` gives {A100}, {80GB}."""
    words = re.findall(r"[A-Z0-9]+", name.upper())
    sizes = {word.replace("GIB", "GB") for word in words if _SIZE.match(word)}
    chips = {
        word for word in words if any(c.isdigit() for c in word) and not _SIZE.match(word) and not _MOUNT.match(word)
    }
    return chips, sizes


def _as_they_are(
    plan: Plan, hosts: Mapping[int, Sequence[RankPlace]], nodes: Mapping[int, Sequence[int]],
    fitting: set[tuple[int, int]],
) -> dict[int, int] | None:  # fmt: skip
    """Each host for the node that its ranks are planned on, where that is one, and each node has one host."""
    found = {}
    for host, places in hosts.items():
        planned = {plan.cluster.node_of[plan.ranks[place.rank]] for place in places}
        if len(planned) > 1 or (host, min(planned)) not in fitting:
            return None
        found[host] = min(planned)
    return found if len(set(found.values())) == len(nodes) == len(hosts) else None


def _matched(
    hosts: Mapping[int, object], nodes: Mapping[int, object], fitting: set[tuple[int, int]]
) -> dict[int, int] | None:
    """A node for every host, and a host for every node, in turn where that fits; None where there is no such thing."""
    if len(hosts) != len(nodes):
        return None
    in_turn = dict(zip(sorted(hosts), nodes, strict=True))
    if fitting.issuperset(in_turn.items()):
        return in_turn
    # Nodes are told from hosts by negative numbers: the matching goes over sets, and strings hash anew in each process.
    graph: networkx.Graph[int] = networkx.Graph()
    graph.add_nodes_from([*hosts, *(-1 - node for node in nodes)])
    graph.add_edges_from((host, -1 - node) for host, node in sorted(fitting))
    found = networkx.bipartite.maximum_matching(graph, top_nodes=list(hosts))
    if sum(host in found for host in hosts) < len(hosts):
        return None
    return {host: -1 - found[host] for host in hosts}


def _told(plan: Plan, hosts: Mapping[int, Sequence[RankPlace]], nodes: Mapping[int, Sequence[int]]) -> str:
    wanted = "; ".join(_node_text(plan, ranks) for ranks in nodes.values())
    found = "; ".join(_host_text(places) for places in hosts.values())
    return (
        f"the run was started on other hosts than the plan is for. The plan wants {wanted}. Found {found}. Start as "
        "many processes on each host as the plan has there (placer launch writes the files), say by "
        f"{NODE} which node a host is where its devices do not tell, or plan again for these machines"
    )


def _note(plan: Plan, hosts: Mapping[int, Sequence[RankPlace]], nodes: Mapping[int, Sequence[int]]) -> None:
    wanted = "; ".join(_node_text(plan, ranks) for ranks in nodes.values())
    found = "; ".join(_host_text(places) for places in hosts.values())
    print(
        f"placer: the plan wants {wanted}, and was started on {found}: messages take other seconds than predicted",
        file=sys.stderr,
    )


def _node_text(plan: Plan, ranks: Sequence[int]) -> str:
    first = plan.ranks[ranks[0]]
    kinds = dict.fromkeys(plan.cluster.devices[plan.ranks[rank]].name for rank in ranks)
    name = plan.cluster.nodes[plan.cluster.node_of[first]].name
    return harmless(f"{len(ranks)} ranks on a node {name} ({', '.join(kinds)})")


def _host_text(places: Sequence[RankPlace]) -> str:
    said = f", which says to be {places[0].node}" if places[0].node else ""
    gpus = ", ".join(dict.fromkeys(places[0].gpus)) or "no GPU"
    return harmless(f"{len(places)} ranks on host {places[0].host} ({gpus}{said})")
