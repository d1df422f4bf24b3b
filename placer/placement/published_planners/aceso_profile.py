"""Aceso's measurements: per op by samples, tensor degree and algorithm; collectives by size; bandwidth by size.

In: the folder of a profile (`MODEL_mbsM_tpT_algoA.csv`, `prim_MODEL_KIND_Ngpus.csv`, `p2p_*.csv`). Out: values.
Times of ops are microseconds, of collectives milliseconds, sizes megabytes (2**20), bandwidths gigabytes per second.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from placer.errors import UsageError

# What the published search takes for what was not measured, so that no plan uses it: MB or us, and ms.
UNMEASURED, UNMEASURED_MS = 1_000_000.0, 100_000.0
KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """One op at `samples` per device: microseconds and megabytes of a device."""

    samples: int
    forward_us: float
    backward_us: float
    input_MB: float  # noqa: N815 - the unit of the published files, here and below
    output_MB: float  # noqa: N815
    weights_MB: float  # noqa: N815
    activations_MB: float  # noqa: N815
    forward_reserved_MB: float  # noqa: N815
    backward_reserved_MB: float  # noqa: N815


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoProfile:
    """The measurements of one model: `ops` in the order of the files, each once."""

    ops: tuple[str, ...]
    costs: dict[tuple[str, int, int, int], OpCost]
    collectives: dict[tuple[str, int], dict[int, float]]
    within_node: tuple[float, ...]
    between_nodes: tuple[float, ...]

    def cost(self, op: str, samples: int, tensor: int, algo: int) -> OpCost:
        """The cost of `op`; so much that no plan uses it where it was not measured."""
        found = self.costs.get((op, samples, tensor, algo))
        return found if found is not None else _cost(samples, [UNMEASURED] * 8)

    def measured(self, op: str, samples: int, tensor: int, algo: int) -> bool:
        """Whether there is a measurement."""
        return (op, samples, tensor, algo) in self.costs

    def collective_ms(self, kind: str, devices: int, size: float) -> float:
        """Milliseconds of a collective of `size` megabytes, measured at this size or the next smaller whole one."""
        if kind == "split":
            return 0.0
        found = self.collectives.get((kind, devices), {})
        whole = round(size)
        return found.get(whole, found.get(round(size - 1), UNMEASURED_MS))

    def transfer_us(self, size: float, *, between_nodes: bool) -> float:
        """Microseconds to hand `size` megabytes to the next stage.

        The bandwidth measured at 2**k megabytes serves sizes of 2**(k+1) up to 2**(k+2), as published; below one
        megabyte the published index runs from the end of the table.
        """
        table = self.between_nodes if between_nodes else self.within_node
        if size <= 0:
            return 0.0
        index = int(math.log2(size))
        bandwidth = table[min(index - 1 if index >= 1 else index, len(table) - 1)]
        return size / (bandwidth * 0.001)


def read_profile(folder: Path, model: str) -> AcesoProfile:
    """The measurements of `model` (as in `gpt_1_3B`) in `folder`. Raises UsageError where there are none."""
    costs, ops = dict[tuple[str, int, int, int], OpCost](), list[str]()
    for path in sorted(folder.glob(f"{model}_mbs*_tp*_algo*.csv")):
        found = re.fullmatch(rf"{re.escape(model)}_mbs(\d+)_tp(\d+)_algo(\d+)\.csv", path.name)
        if found:
            samples, tensor, algo = (int(number) for number in found.groups())
            for name, cost in _rows(path, samples):
                costs[name, samples, tensor, algo] = cost
                if name not in ops:
                    ops.append(name)
    if not costs:
        raise UsageError(f"{folder} holds no measurements of {model}; found none of {model}_mbs*_tp*_algo*.csv")
    within = _bandwidths(folder / "p2p_intra_node.csv")
    between = folder / "p2p_inter_node.csv"
    return AcesoProfile(
        ops=tuple(ops),
        costs=costs,
        collectives=dict(_collectives(folder, model)),
        within_node=within,
        between_nodes=_bandwidths(between) if between.exists() else within,
    )


def _rows(path: Path, samples: int) -> list[tuple[str, OpCost]]:
    """The ops of one file."""
    try:
        return [(row[0], _cost(samples, [float(value) for value in row[1:9]])) for row in _table(path)]
    except (ValueError, IndexError) as error:
        raise UsageError(f"{path} is no table of op costs: {error}; it needs a name and eight numbers a line") from None


def _cost(samples: int, row: list[float]) -> OpCost:
    """One line of a file."""
    return OpCost(
        samples=samples,
        forward_us=row[0],
        backward_us=row[1],
        input_MB=row[2],
        output_MB=row[3],
        weights_MB=row[4],
        activations_MB=row[5],
        forward_reserved_MB=row[6],
        backward_reserved_MB=row[7],
    )


def _collectives(folder: Path, model: str) -> list[tuple[tuple[str, int], dict[int, float]]]:
    """Milliseconds by whole megabytes of every collective measured."""
    found = []
    for kind in KINDS:
        for path in sorted(folder.glob(f"prim_{model}_{kind}_*gpus.csv")):
            devices = int(path.stem.rsplit("_", 1)[1].removesuffix("gpus"))
            found.append(((kind, devices), {int(row[0]): float(row[1]) for row in _table(path)}))
    return found


def _bandwidths(path: Path) -> tuple[float, ...]:
    """Gigabytes per second at 1, 2, 4, ... megabytes."""
    return tuple(float(value) for value in _table(path)[0])


def _table(path: Path) -> list[list[str]]:
    """The lines below the header."""
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]
