"""Which rows are judged together: those of a table, and within it those of one family and number of bits."""

from __future__ import annotations

from collections.abc import Sequence

from placer.strategies.predictions.errors import Slice, slice_of
from placer.strategies.predictions.prediction import Missing, Prediction
from placer.strategies.predictions.rows import Row

FAMILIES = (("moe", "experts"), ("mixtral", "experts"), ("hybrid", "experts"))
IMAGES = ("classification", "segmentation", "detection", "cnn", "wresnet", "w-resnet", "unet")


def slices(found: Sequence[Prediction | Missing]) -> tuple[Slice, ...]:
    """A slice of each table, followed by its parts where it has several."""
    tables: dict[str, list[Prediction | Missing]] = {}
    for one in found:
        tables.setdefault(one.row.dataset, []).append(one)
    made: list[Slice] = []
    for name, rows in tables.items():
        made.append(slice_of(name, rows))
        parts: dict[str, list[Prediction | Missing]] = {}
        for one in rows:
            parts.setdefault(part_of(one.row), []).append(one)
        if len(parts) > 1:
            made += [slice_of(f"{name} / {part}", chosen) for part, chosen in sorted(parts.items())]
    return tuple(made)


def part_of(row: Row) -> str:
    """Its family, and how many bits its products have where they are few."""
    arch, precision = row.text("arch").lower(), row.text("precision").lower()
    family = next((name for word, name in FAMILIES if word in arch), "")
    family = family or ("images" if arch in IMAGES else "dense")
    bits = "4 bits" if "fp4" in precision else "8 bits" if "fp8" in precision or "float8" in precision else ""
    return f"{family}, {bits}" if bits else family
