"""Machines and their devices, which stage each holds, and who sends how much to whom in a step.

Of plans with many ranks, columns of replicas that do the same are played once; their messages are drawn once too, and
counted for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import log10

from placer.cluster.cluster import Link
from placer.costs.communication.intra_op import block_communication, communications
from placer.costs.step_estimate import costs_of
from placer.plans.plan import Plan, replica_rows
from placer.program.instructions import Collective, Message, Program
from placer.program.lowering import lower
from placer.report.page.charts import Chart, Section, bare, chart, label, legend, stage_color
from placer.report.page.markup import Markup, counted, folded, heading, paragraph, table
from placer.report.plan_table import ranges_text
from placer.report.printing import bytes_text, seconds_text
from placer.simulator.simulation import column_classes

# With more ranks only columns that differ are drawn and counted.
MOST_RANKS = 64
MOST_DEVICES = 4_096
MOST_LINES = 60
# So that few devices do not fill the page.
FEWEST_ACROSS = 12
# What all ranks sum and is small: not worth a line.
OF_ALL = ("loss", "norm", "reached")
LINK_COLORS = {"between stages": "#f2a541", "between replicas": "#d9672b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of a step: from device to device, and of each collective's ranks by what it is for."""

    messages: Counter[tuple[int, int]]
    collectives: Counter[tuple[str, str, tuple[int, ...]]]
    whole: bool


def traffic(plan: Plan) -> Traffic:
    """What the programs of the ranks move; `whole` says whether those of all ranks were made."""
    whole = plan.world_size <= MOST_RANKS
    columns = None if whole else [members[0] for members in column_classes(plan)]
    found = Traffic(messages=Counter(), collectives=Counter(), whole=whole)
    for program in lower(plan, columns=columns):
        _count(plan, program, found)
    return found


def _count(plan: Plan, program: Program, found: Traffic) -> None:
    for entry in program.instructions:
        if isinstance(entry, Message) and entry.direction == "send":
            found.messages[program.device, plan.ranks[entry.peer]] += entry.bytes
        elif isinstance(entry, Collective) and program.rank == entry.ranks[0]:
            found.collectives[entry.purpose, entry.kind, tuple(plan.ranks[r] for r in entry.ranks)] += entry.bytes


def devices_section(plan: Plan) -> Section:
    """The drawing, then tables of what crosses what."""
    found = traffic(plan)
    told = f"{plan.world_size} of {plan.cluster.size} devices in {counted(len(plan.cluster.nodes), 'node')} are used."
    if plan.cluster.size > MOST_DEVICES:
        told += f" The first {MOST_DEVICES} are drawn."
    if not found.whole:
        told += " Of replicas that do the same the messages of one are drawn and listed."
    parts: list[Markup | Chart] = [
        paragraph(told), heading("Nodes from above, their devices from left to right, coloured by stage"),
        legend(LINK_COLORS), _drawn(plan, found), _links(plan),
    ]  # fmt: skip
    parts += list(_tables(plan, found))
    return Section("Devices and traffic", tuple(parts))


def _drawn(plan: Plan, found: Traffic) -> Chart:
    cluster = plan.cluster
    devices = range(min(cluster.size, MOST_DEVICES))
    places = _places(plan)
    nodes = 1 + max(cluster.node_of[device] for device in devices)
    drawn = chart(
        across="", up="", height=80 + 34 * min(nodes, 20), bottom_top=(0.4 - nodes, 0.6),
        left_right=(-0.7, max(FEWEST_ACROSS, 1 + max(places[device][0] for device in devices)) - 0.3),
        tooltips=[("device", "@device"), ("kind", "@kind"), ("node", "@node"), ("stage", "@stage")],
    )  # fmt: skip
    bare(drawn)
    stages = _stages_of(plan)
    _lines(drawn, places, found)
    drawn.rect(
        "x", "y", width=0.7, height=0.6, fill_color="color", line_color="#808080",
        source={
            "x": [places[device][0] for device in devices], "y": [places[device][1] for device in devices],
            "color": [stage_color(stages[device][0]) if device in stages else "#00000000" for device in devices],
            "device": list(devices), "kind": [label(cluster.devices[device].name) for device in devices],
            "node": [label(_node(plan, device), 60) for device in devices],
            "stage": [ranges_text(tuple(stages[device])) if device in stages else "none" for device in devices],
        },
    )  # fmt: skip
    return drawn


def _lines(drawn: Chart, places: dict[int, tuple[float, float]], found: Traffic) -> None:
    """Messages as lines, collectives as the ring through their devices; thicker by ten times the bytes."""
    rings: Counter[tuple[int, int]] = Counter()
    for (purpose, _, devices), size in found.collectives.items():
        if purpose in OF_ALL:
            continue
        ring = zip(devices, (*devices[1:], devices[0]), strict=True)
        for pair in ring if len(devices) > 2 else ([devices] if len(devices) == 2 else []):
            rings[pair[0], pair[1]] += size
    for name, links in (("between replicas", rings), ("between stages", found.messages)):
        known = [(pair, size) for pair, size in links.items() if size and pair[0] in places and pair[1] in places]
        if known:
            drawn.multi_line(
                xs=[[places[a][0], places[b][0]] for (a, b), _ in known],
                ys=[[places[a][1], places[b][1]] for (a, b), _ in known],
                line_width=[max(1.0, log10(size) - 4) for _, size in known], color=LINK_COLORS[name], line_alpha=0.5,
            )  # fmt: skip


def _places(plan: Plan) -> dict[int, tuple[float, float]]:
    """Where each device that is drawn stands."""
    found, within, last = dict[int, tuple[float, float]](), 0, -1
    for device, node in enumerate(plan.cluster.node_of[:MOST_DEVICES]):
        within = within + 1 if node == last else 0
        last = node
        found[device] = (float(within), -float(node))
    return found


def _stages_of(plan: Plan) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            found.setdefault(device, []).append(number)
    return found


def _node(plan: Plan, device: int) -> str:
    node = plan.cluster.node_of[device]
    return f"{node} ({plan.cluster.nodes[node].name})"


def _links(plan: Plan) -> Markup:
    """The links a message may cross, from a node's own to the widest network."""
    rows = []
    for node, count in plan.cluster.groups:
        rows.append((f"within {node.name}", counted(count, "node"), node.link.name, _rate(node.link)))
        if node.nic:
            rows.append((f"out of {node.name}", counted(count, "node"), node.nic.name, _rate(node.nic)))
    for one in plan.cluster.levels:
        groups = f"{one.nodes} nodes a group" if one.nodes else "all nodes"
        rows.append((f"network {one.name}", groups, one.link.name, _rate(one.link)))
    return folded("Links", table(("where", "of", "link", "rate"), rows, left=3))


def _rate(link: Link) -> str:
    return f"{bytes_text(link.bandwidth)}/s" + (f" x {link.ports}" if link.ports > 1 else "")


def _tables(plan: Plan, found: Traffic) -> Iterator[Markup]:
    sent = found.messages.most_common(MOST_LINES)
    if sent:
        rows = [(str(a), str(b), _crossed(plan, a, b), bytes_text(size)) for (a, b), size in sent]
        title = f"Messages between devices ({len(rows)} of {len(found.messages)})"
        yield folded(title, table(("from", "to", "crosses", "bytes a step"), rows, left=3))
    summed = [entry for entry in found.collectives.most_common(MOST_LINES) if entry[1]]
    if summed:
        rows = [(purpose, kind, ranges_text(group), bytes_text(size)) for (purpose, kind, group), size in summed]
        yield folded(f"Collectives ({len(rows)})", table(("of", "kind", "devices", "bytes a step"), rows, left=3))
    inside = list(_inside(plan))
    if inside:
        yield folded(
            "Within replicas", table(("stage", "axes", "collectives a microbatch", "bytes", "seconds"), inside)
        )


def _crossed(plan: Plan, one: int, other: int) -> str:
    nodes = {plan.cluster.node_of[one], plan.cluster.node_of[other]}
    at = plan.cluster.level_of(nodes)
    if at < 0:
        return plan.cluster.nodes[min(nodes)].link.name if len(nodes) == 1 else "nic"
    return plan.cluster.levels[at].name


def _inside(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Of each stage whose ops are cut: what the devices of its first replica say to each other in one microbatch,
    forward and backward."""
    costs = costs_of(plan)
    for number, stage in enumerate(plan.stages):
        if stage.layout is None:
            continue
        own, devices = costs.of_stage(plan, stage), stage.devices[: stage.degree]
        rows = -(-replica_rows(max(plan.microbatches), stage.shares, stage.replicas)[0] // own.apart)
        kinds = [own.graph.classes[block.kind] for block in own.graph.blocks[stage.first : stage.last]]
        said = [one for kind in kinds for one in communications(kind, own.numerics, rows)]
        spent = [block_communication(kind, own.numerics, own.network, devices, rows) for kind in kinds]
        yield (
            str(number),
            plan.layouts[stage.layout].shape,
            str(len(said)),
            bytes_text(sum(one.size for one in said)),
            seconds_text(sum(one.forward + one.backward for one in spent)),
        )
