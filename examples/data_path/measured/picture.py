"""Predicted beside measured samples/s as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from examples.data_path.measured.verdict import Outcome
from placer.errors import require_extra

BOUND = 0.15


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Each path as a point, in the colour of what binds it. Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    ends = [min(one.measured for one in outcomes) / 1.5, max(one.measured for one in outcomes) * 1.5]
    axes.loglog(ends, ends, color="grey", linewidth=1)
    axes.fill_between(
        ends, [end * (1 - BOUND) for end in ends], [end * (1 + BOUND) for end in ends], color="grey", alpha=0.2,
        label="within 15%",
    )  # fmt: skip
    for part in dict.fromkeys(one.bottleneck for one in outcomes):
        for right, marker in ((True, "o"), (False, "x")):
            some = [one for one in outcomes if one.bottleneck == part and one.right == right]
            label = f"binds: {part}" if right else f"predicted to bind, but does not: {part}"
            if some:
                axes.plot([one.measured for one in some], [one.predicted for one in some], marker, label=label)
    axes.set_xlabel("samples/s measured")
    axes.set_ylabel("samples/s predicted")
    axes.legend()
    figure.savefig(path)
