"""What `placer place` and `placer bench placement` show: a placement by device, published problems by line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.placement.answers import PlaceAnswer, PlacedStage
from placer.placement.benchmark import BenchRow
from placer.report.documents import Document
from placer.report.printing import bytes_text, table

SHOWN_NODES = 4


def answer_document(answer: PlaceAnswer) -> Document:
    """The answer for machines. `seconds` is solving; costs and loads are in `unit`."""
    return {
        "objective": answer.objective,
        "unit": answer.unit,
        "kind": answer.kind,
        "status": answer.status,
        "bound": answer.bound,
        "gap": answer.gap if math.isfinite(answer.gap) else None,  # JSON has no infinity
        "seconds": answer.seconds,
        "assignment": dict(answer.assignment),
        "stages": [
            {
                "device": stage.device,
                "load": stage.load,
                "memory_bytes": stage.memory_bytes,
                "nodes": list(stage.nodes),
                "detail": stage.detail,
                **_variants(stage),
            }
            for stage in answer.stages
        ],
        "notes": list(answer.notes),
    }


def _variants(stage: PlacedStage) -> Document:
    """Degrees and variants by node, of formats that have them."""
    if not stage.variants:
        return {}
    named = dict(zip(stage.nodes, stage.variants, strict=True))
    return {"data": stage.data, "tensor": stage.tensor, "variants": dict(named)}


def answer_view(answer: PlaceAnswer) -> RenderableType:
    """The answer for people: its value and proof, then a line for each device."""
    devices = table("device", "nodes", f"load ({answer.unit})", "bytes", "first nodes", left=1)
    for stage in answer.stages:
        first = ", ".join(stage.nodes[:SHOWN_NODES]) + (", ..." if len(stage.nodes) > SHOWN_NODES else "")
        held = bytes_text(int(stage.memory_bytes)) if math.isfinite(stage.memory_bytes) else "-"
        devices.add_row(
            stage.device, str(len(stage.nodes)), f"{stage.load:.9g}", held, f"{stage.detail} {first}".strip()
        )
    head = f"{answer.objective:.12g} {answer.unit} ({answer.kind})"
    proof = f"{answer.status}: bound {answer.bound:.12g}, gap {_percent(answer.gap)}, {answer.seconds:.2f} s"
    return Group(Text(head, style="bold"), Text(proof), *(Text(note) for note in answer.notes), devices)


def bench_document(rows: Sequence[BenchRow]) -> Document:
    """Every row for machines."""
    return {"rows": [_row_document(row) for row in rows]}


def bench_view(rows: Sequence[BenchRow]) -> RenderableType:
    """Every row for people."""
    view = table("problem", "setting", "value", "unit", "known", "gap", "bound", "seconds", "published", left=2)
    for row in rows:
        published = "; ".join(_published(system, value, seconds) for system, value, seconds in row.published)
        known = "-" if row.known is None else f"{row.known:.9g} {row.known_kind}".strip()
        view.add_row(
            row.problem, row.setting, _number(row.value) if row.value is not None else row.note,
            row.unit, known, _percent(row.gap), _number(row.bound), f"{row.seconds:.2f}", published,
        )  # fmt: skip
    return view


def _row_document(row: BenchRow) -> JsonValue:
    return {
        "family": row.family,
        "problem": row.problem,
        "setting": row.setting,
        "value": row.value,
        "unit": row.unit,
        "known": row.known,
        "known_kind": row.known_kind,
        "bound": row.bound,
        "gap": row.gap,
        "seconds": row.seconds,
        "published": [
            {"system": system, "value": value, "seconds": seconds} for system, value, seconds in row.published
        ],
        "note": row.note,
    }


def _published(system: str, value: float | None, seconds: float | None) -> str:
    return f"{system} {_number(value)}" + (f" in {seconds:g} s" if seconds is not None else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.9g}"


def _percent(gap: float | None) -> str:
    return "-" if gap is None or not math.isfinite(gap) else f"{gap:.2%}"
