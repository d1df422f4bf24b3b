"""A sweep: models x machines x networks x precisions x counts of devices, as a YAML file, each cell predicted.

    models:
      ResNet-50: {model: "examples.sweep.models:resnet50", batch: "pixel_values=64x3x224x224,labels=64:int64"}
    machines: {V100: v100-pcie, K80: k80}       # a device of the catalogue
    networks: {InfiniBand: ib-fdr}              # between nodes, of the catalogue
    precisions: [float32]
    counts: [1, 4, 32]
    per_node: 4
    strategy: data
    optimizer: sgd
    batch_norm: microbatch                       # statistics of each device's rows, as in DDP and Horovod

The batch is that of ONE device: with n devices it has n times as many rows. A model that returns no loss is given one,
`loss: "package.module:function"` of (output, batch). Names are free; a published row belongs to
a cell whose names are its own (columns model, device, network, precision, nodes, gpus_per_node, batch_per_gpu).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from placer.cluster.cluster import Cluster
from placer.cluster.hardware_data import aliases, short_names
from placer.cluster.schema import Count
from placer.errors import InfeasibleError, UsageError
from placer.io.files import read_text
from placer.io.yaml_document import close, parse, validated
from placer.plans.plan import Plan
from placer.plans.settings import Precision
from placer.search.problem import Problem

PRECISIONS: dict[str, Precision] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
COLUMNS = (
    "source", "model", "framework", "device", "nodes", "gpus_per_node", "batch_per_gpu", "precision", "network", "data",
    "value", "unit",
)  # fmt: skip
UNIT, SYNTHETIC = "images/s total", "synthetic"


class SweptModel(BaseModel):
    """A model as `placer plan` takes it, the batch of one device, and the loss of a model that returns none."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    model: str
    batch: str
    loss: str | None = None


class Sweep(BaseModel):
    """The axes of a grid by the names that rows bear."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    models: dict[str, SweptModel] = Field(min_length=1)
    machines: dict[str, str] = Field(min_length=1)
    networks: dict[str, str] = Field(min_length=1)
    precisions: tuple[Precision, ...] = Field(default=("float32",), min_length=1)
    counts: tuple[Count, ...] = Field(min_length=1)
    per_node: Count = 8
    strategy: str = "data"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    batch_norm: Literal["exact", "microbatch"] = "microbatch"

    @property
    def cells(self) -> Iterator[Cell]:
        """Every cell; of counts that one node holds only those of the first network, which nothing crosses."""
        for model, machine, precision, count in product(self.models, self.machines, self.precisions, self.counts):
            networks = list(self.networks) if count > self.per_node else list(self.networks)[:1]
            for network in networks:
                yield Cell(model=model, machine=machine, network=network, precision=precision,
                           nodes=-(-count // self.per_node), per_node=min(count, self.per_node))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A point of the grid, by the names of the file."""

    model: str
    machine: str
    network: str
    precision: Precision
    nodes: int
    per_node: int

    @property
    def count(self) -> int:
        """Devices."""
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A measured row: rows/s of all devices, by whom, with what."""

    cell: Cell
    source: str
    framework: str
    rows_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A cell's plan, or why there is none; `published` is the row it stands beside."""

    cell: Cell
    plan: Plan | None
    reason: str = ""
    published: PublishedRow | None = None

    @property
    def rows_per_second(self) -> float | None:
        """Predicted."""
        return None if self.plan is None or self.plan.ledger is None else self.plan.ledger.rows_per_second

    @property
    def error(self) -> float | None:
        """Predicted over published, less one."""
        if self.published is None or self.rows_per_second is None:
            return None
        return self.rows_per_second / self.published.rows_per_second - 1


def read_sweep(path: str) -> Sweep:
    """The sweep of a file. Raises UsageError naming file, line and field, or a machine or network there is not."""
    document = parse(read_text(path, "the sweep"), path)
    sweep = validated(document, Sweep)
    if any(count > sweep.per_node and count % sweep.per_node for count in sweep.counts):
        line = document.line(("counts",))
        raise UsageError(f"{path}, line {line}: counts beyond {sweep.per_node} must be whole nodes of {sweep.per_node}")
    for name, device in sweep.machines.items():
        if device.lower() not in ("local", *aliases("devices")):
            like = close(device.lower(), short_names("devices"))
            raise UsageError(
                f"{path}, line {document.line(('machines', name))}: {device!r} is no device of the catalogue; {like}"
            )
    for cell in sweep.cells:
        cluster_of(sweep, cell)
    return sweep


def cluster_of(sweep: Sweep, cell: Cell) -> Cluster:
    """The machines of a cell."""
    device = sweep.machines[cell.machine]
    if cell.nodes == 1:
        return Cluster.load(f"{device}x{cell.per_node}")
    return Cluster.load(f"{device}x{cell.per_node}*{cell.nodes}@{sweep.networks[cell.network]}")


def read_published(path: str, sweep: Sweep) -> tuple[tuple[PublishedRow, ...], int]:
    """The rows of a CSV file that lie in the grid's models, machines, networks and precisions, and how many do not.

    A row within one node needs no network of the grid. Raises UsageError for a file without the columns.
    """
    reader = csv.DictReader(io.StringIO(read_text(path, "the published rows")))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path} lacks the columns {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
    found, left = [], 0
    for number, row in enumerate(reader, 2):
        try:
            made = _row(row, sweep)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path}, line {number}: {error}; correct the row") from None
        found += [made] if made else []
        left += made is None
    return tuple(found), left


def _row(row: dict[str, str], sweep: Sweep) -> PublishedRow | None:
    known = row["model"] in sweep.models and row["device"] in sweep.machines and row["precision"] in PRECISIONS
    if not known or row["unit"] != UNIT or row["data"] != SYNTHETIC or not row["nodes"] or not row["gpus_per_node"]:
        return None
    nodes, value = int(row["nodes"]), float(row["value"])
    alone = nodes == 1
    precision = PRECISIONS[row["precision"]]
    wanted = str(_rows(sweep.models[row["model"]].batch))
    if (row["network"] not in sweep.networks and not alone) or row["batch_per_gpu"] != wanted:
        return None
    if precision not in sweep.precisions or not value > 0:
        return None
    cell = Cell(
        model=row["model"], machine=row["device"], network=row["network"], precision=precision, nodes=nodes,
        per_node=int(row["gpus_per_node"]),
    )  # fmt: skip
    return PublishedRow(cell=cell, source=row["source"].split()[0], framework=row["framework"], rows_per_second=value)


def _rows(batch: str) -> int:
    """The rows of the first input of a batch: `x=64x3x224x224` or `64x1024`."""
    digits = batch.split(",")[0].rpartition("=")[2].split("x")[0]
    return int(digits) if digits.isdecimal() else 0


def predicted(
    sweep: Sweep, cell: Cell, problem: Problem, solve: Callable[[Problem, str], Plan],
    published: PublishedRow | None = None,
) -> Predicted:  # fmt: skip
    """A cell by the sweep's strategy; `problem` is its model's on one device in its precision, `solve` searches it."""
    rows = problem.rows * cell.count
    wanted = replace(
        problem,
        graph=replace(problem.graph, rows=rows),
        rows=rows,
        cluster=cluster_of(sweep, cell),
    )
    try:
        return Predicted(cell=cell, plan=solve(wanted, sweep.strategy), published=published)
    except InfeasibleError as error:
        return Predicted(cell=cell, plan=None, reason=str(error), published=published)
