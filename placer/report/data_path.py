"""A data path for people and for machines: what each resource passes, what binds, how much is needed, what helps."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.costs.data_path.additions import Addition
from placer.costs.data_path.path import DataPath
from placer.costs.data_path.resources import Resource
from placer.report.documents import Document
from placer.report.printing import bytes_text, share_text, table, titled

# Additions that are told; the others cost more.
MOST_ADDITIONS = 4
PLACES = {
    "device": "from device memory, if your loop keeps it there",
    "host memory": "from host memory",
    "local disk": "from local disks",
    "anew": "from where it lies",
}


def data_path_view(path: DataPath) -> RenderableType:
    """What `--data-set` adds to a plan."""
    view = table("resource", "nodes", "has", "needs", "one passes", "all pass", "asked for", left=1)
    for one in path.chains.resources:
        view.add_row(
            f"{one.name}{' *' if one in path.flow.binding else ''}",
            str(one.nodes),
            str(one.units),
            _needs(one),
            _rate(float(one.rate)),
            _rate(float(one.capacity)),
            _rate(float(one.wanted * one.nodes)),
        )
    parts: list[RenderableType] = [titled(f"data path of {path.data_set.name}, samples/s", view)] * bool(view.row_count)
    return Group(*parts, *map(Text, _lines(path)))


def data_path_document(path: DataPath) -> Document:
    """The same with units in the keys."""
    return {
        "data_set": path.data_set.name,
        "stored_bytes": path.data_set.total_bytes,
        "asked_samples_per_second": float(path.wanted),
        "samples_per_second": path.samples_per_second,
        "share": float(path.flow.share),
        "bottleneck": path.bottleneck,
        "first_epoch_share": float(path.first_flow.share),
        "first_epoch_bottleneck": path.first_bottleneck,
        "places": {one.demand.node.name: one.place for one in path.chains.branches},
        "resources": [_resource(one) for one in path.chains.resources],
        "additions": [_addition(one) for one in path.additions],
        "notes": list(path.notes),
    }


def _lines(path: DataPath) -> Iterator[str]:
    places = {f"{PLACES[one.place]} ({one.demand.node.name})": None for one in path.chains.branches}
    size = bytes_text(path.data_set.total_bytes)
    yield f"{path.data_set.name}: {size}, read from the second epoch on {', '.join(places)}"
    share = path.flow.share
    if share == 1:
        yield f"bottleneck: devices, which get the {_rate(float(path.wanted))} samples/s they ask for and never wait"
    else:
        yield (
            f"bottleneck: {path.bottleneck}; devices get {_rate(path.samples_per_second)} of the "
            f"{_rate(float(path.wanted))} samples/s they ask for, and wait {share_text(float(1 - share))} of the time"
        )
    if path.first_flow != path.flow:
        yield f"in the first epoch: {path.first_bottleneck}, {share_text(float(path.first_flow.share))} of that"
    for one in path.additions[:MOST_ADDITIONS]:
        yield f"helps: {_told(one)}"
    if share < 1 and not path.additions:
        yield "nothing that can be added helps: what binds is part of the nodes; send fewer bytes, or take others"
    yield from (f"note: {note}" for note in path.notes)


def _told(one: Addition) -> str:
    cost = "" if one.dollars is None else f", {one.dollars:,.0f} dollars"
    reached = "devices never wait" if one.share == 1 else f"{share_text(float(one.share))} of what is asked"
    return f"{one.what}{cost}: {reached}"


def _needs(one: Resource) -> str:
    return f"{one.needed} beside" if one.computes else str(one.needed)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _resource(one: Resource) -> JsonValue:
    return {
        "kind": one.kind,
        "where": one.where,
        "nodes": one.nodes,
        "units_per_node": one.units,
        "needed_per_node": one.needed,
        "unit_samples_per_second": float(one.rate),
        "samples_per_second": float(one.capacity),
        "asked_samples_per_second": float(one.wanted * one.nodes),
    }


def _addition(one: Addition) -> JsonValue:
    return {"what": one.what, "parts": one.parts, "dollars": one.dollars, "share": float(one.share)}
