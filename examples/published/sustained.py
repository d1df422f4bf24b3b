"""What is left of a chip's best product in the steps of training runs, by published runs of that chip.

    python -m examples.published.sustained --data ../shared/truth [--chip h100-80gb-sxm5] [--without TABLE]

Of each chip: `sustained`, at which the median over tables of the median of measured over predicted seconds of their
rows is 1. Rows count whose recompute and layout are printed, of models that keep a device busy (LEAST
FLOPs of the model a device and step). With it, what each table alone would give: what differs between tables of one
chip is software. `--without` leaves a table out: to judge that table by constants that have not seen it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from placer.strategies.predictions.machines import cluster_of
from placer.strategies.predictions.prediction import Prediction, predictions
from placer.strategies.predictions.rows import Row, read_rows
from placer.tracer.published.models import model_graph

# FLOPs of the model a device and step below which launches and hosts count.
LEAST = 5e12
ROWS = 6
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def main() -> None:
    """Print a line for each chip and table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a CSV file of measured runs, or a folder of them")
    parser.add_argument("--chip", help="only this one, by its name in the catalogue")
    parser.add_argument("--without", help="leave this table out")
    options = parser.parse_args()
    chips: dict[str, dict[str, list[Row]]] = {}
    for row in read_rows(options.data):
        if row.seconds and _printed(row) and row.dataset != options.without and (chip := _chip(row)):
            chips.setdefault(chip, {}).setdefault(row.dataset, []).append(row)
    for chip, tables in sorted(chips.items()):
        if options.chip in (None, chip):
            _print(chip, {name: _few(rows) for name, rows in tables.items()})


def _print(chip: str, tables: dict[str, Sequence[Row]]) -> None:
    found = {name: [_ratio(rows, share) for share in SHARES] for name, rows in tables.items()}
    known = {name: [one for one in ratios if one] for name, ratios in found.items() if ratios[0]}
    if not known:
        return
    together = [median(ratios) for ratios in zip(*known.values(), strict=True)]
    print(f"{chip}: sustained {_solved(together):.0%}", flush=True)
    for name, ratios in known.items():
        print(f"    {name}: {_solved(ratios):.0%}, at 100% measured over predicted {ratios[-1]:.2f}", flush=True)


def _solved(ratios: Sequence[float]) -> float:
    """The share at which measured over predicted, which rises with it, is 1; between SHARES on a line."""
    for (low, before), (high, after) in pairwise(zip(SHARES, ratios, strict=True)):
        if before <= 1 <= after:
            return low + (high - low) * (1 - before) / (after - before) if after > before else high
    return SHARES[0] if ratios[0] > 1 else SHARES[-1]


def _ratio(rows: Sequence[Row], share: float) -> float | None:
    """The median of measured over predicted seconds; None without rows that count."""

    @cache
    def machines(spec: str) -> Cluster:
        found = Cluster.load(spec)
        groups = tuple(
            (replace(node, devices=tuple((replace(d, sustained=share), n) for d, n in node.devices)), count)
            for node, count in found.groups
        )
        return replace(found, groups=groups)

    made = [one for one in predictions(rows, model_graph, machines) if isinstance(one, Prediction)]
    counted = [one for one in made if one.ledger.flops / max(1, one.row.devices) >= LEAST]
    return median(one.row.seconds / one.seconds for one in counted) if counted else None


def _chip(row: Row) -> str:
    """The name of its chip in the catalogue; "" where that has no such machines."""
    try:
        return Cluster.load(cluster_of(row) or "").devices[0].name
    except UsageError:
        return ""


def _printed(row: Row) -> bool:
    """Whether nothing of it has to be chosen: its recompute is said, and is all or nothing."""
    return row.text("recompute").lower().startswith(("full", "none")) and bool(row.count("micro_batch"))


def _few(rows: Sequence[Row]) -> Sequence[Row]:
    """So many of the rows, evenly."""
    return rows[:: max(1, len(rows) // ROWS)]


if __name__ == "__main__":
    main()
