"""The ops of a model that no rule knows, and those that can only be done whole."""

from __future__ import annotations

from pydantic import JsonValue
from rich.console import RenderableType
from rich.text import Text

from placer.graph import Graph
from placer.report.printing import bytes_text, share_text, table, titled
from placer.rules.coverage import coverage, unsplit


def unknown_ops(graph: Graph) -> tuple[str, ...]:
    """A line for each operator without a FLOP rule: how often, where first, what to do."""
    found = coverage(graph)
    return tuple(
        f"{one.target} has no FLOP rule ({one.count} of them, first at {one.source or 'an unknown line'}), so that its "
        f"FLOPs count as 0; all such ops may be {share_text(found.share)} of the model: give it one with "
        "placer.rules.register"
        for one in found.uncovered
    )


def ops_view(graph: Graph) -> list[RenderableType]:
    """Both lists for people."""
    lines: list[RenderableType] = [Text(line) for line in unknown_ops(graph)]
    if not lines:
        lines.append(Text("every op has a FLOP rule"))
    shown = table("op", "first at", "count", "FLOPs", "bytes", left=2)
    for one in unsplit(graph):
        shown.add_row(one.target, one.source, str(one.count), share_text(one.share), bytes_text(one.bytes))
    return [*lines, titled("ops without a split rule: done whole on every device of a replica", shown)]


def ops_document(graph: Graph) -> dict[str, JsonValue]:
    """Both lists for machines."""
    found = coverage(graph)
    without: list[JsonValue] = [
        {"op": one.target, "count": one.count, "source": one.source, "guessed_flops": one.flops}
        for one in found.uncovered
    ]
    whole: list[JsonValue] = [
        {"op": one.target, "count": one.count, "source": one.source, "share_of_flops": one.share, "bytes": one.bytes}
        for one in unsplit(graph)
    ]
    return {"ops_without_flop_rule": without, "guessed_share": found.share, "ops_without_split_rule": whole}
