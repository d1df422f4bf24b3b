"""Published training runs as placer's problems: the rows of vTrain's, Megatron's and Megatron-Bridge's tables.

In: the table `training_runs.csv` (one row per measured run). Out: `Run`s, each with its model's shape, its machines,
its settings and the layout as printed, and in words what the row uses that is estimated otherwise (`notes`) or not at
all (`unmodelled`). A row is never dropped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from placer.plans.plan import Sharding
from placer.plans.settings import Precision, RunSettings
from placer.strategies.baselines.megatron import MegatronDegrees

FAMILIES = {
    "vtrain": ("vtrain_single_node_a100", "vtrain_multi_node_a100"),
    "megatron": ("megatron_papers_readme",),
    "bridge": ("nemo_megatron_bridge",),
}
# Names of the tables -> of the catalogue. vTrain does not state the memory of its A100s; GPT 18.4B at tensor 8 without
# sharded state (row 27 of its multi-node table) keeps 18 bytes a parameter, 41 GB a device: they have 80 GB.
CHIPS = {
    "A100 (SXM, mem size not stated)": "a100-80gb",
    "A100-80GB-SXM": "a100-80gb",
    "A100-40GB": "a100-40gb",
    "H100-80GB-SXM": "h100",
    "V100-32GB": "v100-32gb",
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
}
# Devices that one node of the catalogue holds; NVL72's tables use 64 of its 72.
NODES = {"gb200": 64, "gb300": 64}
SIXTEEN_BITS: dict[str, Precision] = {"fp16": "float16", "bf16": "bfloat16"}
# Vocabularies are padded so that every device has a multiple of it (megatron/training/arguments.py,
# --make-vocab-size-divisible-by). vTrain's rows say 50257 (its src/config.py): taken as it is at tensor degree 1, and
# padded where it must be, for more devices. Their groups are planned with that for the most devices of a node.
PADDING = 128
# What the table leaves out of DeepSeek-V3 is as published (arXiv:2412.19437, section 4.2; its config.json).
DEEPSEEK = 129280
NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's sizes; `kind` is the column `arch`. `vocabulary` is padded as Megatron pads it.

    Of mixtures: `experts` a layer, of which a token takes `chosen`, each `expert_inner` wide.
    """

    kind: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    sequence: int
    head_size: int = 0
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row. `layouts`: the published one, or, where the table does not print all of it, those it may be.

    shape: of the model as it was run; `common`: that which all rows of its group are planned with, which differs from
    it in the padding of the vocabulary. seconds: measured seconds of a step; 0 where there are none.
    """

    row: str
    family: str
    model: str
    shape: Shape | None
    common: Shape | None
    cluster: str
    devices: int
    rows: int
    settings: RunSettings
    layouts: tuple[MegatronDegrees, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()

    @property
    def group(self) -> tuple[object, ...]:
        """What runs share that solve the same problem."""
        return (self.family, self.common, self.cluster, self.rows, self.settings)


def published_runs(table: Path, family: str) -> tuple[Run, ...]:
    """Every row of a family's datasets, in the order of the table."""
    with table.open(newline="") as file:
        return tuple(_run(row, family) for row in csv.DictReader(file) if row["dataset"] in FAMILIES[family])


def _run(row: dict[str, str], family: str) -> Run:
    notes, unmodelled = list(_notes(row)), list(_unmodelled(row))
    layouts = () if unmodelled else tuple(_layouts(row, notes))
    pieces = max((each.tensor for each in layouts), default=1)
    shape = common = _shape(row, PADDING * pieces)
    if family == "vtrain":
        shape = _shape(row, PADDING * pieces if pieces > 1 else 1)
        common = _shape(row, PADDING * min(NODE, _count(row, "n_gpus")))
    return Run(
        row=row["row_id"], family=family, model=row["model"], cluster=_cluster(row), devices=_count(row, "n_gpus"),
        shape=shape, common=common, rows=_count(row, "global_batch", 0), settings=_settings(row), layouts=layouts,
        seconds=float(row["step_time_s"] or 0), notes=tuple(notes), unmodelled=tuple(unmodelled),
    )  # fmt: skip


def _count(row: dict[str, str], name: str, otherwise: int = 1) -> int:
    return int(row[name]) if row[name] else otherwise


def _shape(row: dict[str, str], step: int) -> Shape | None:
    """The sizes of a row's model, its vocabulary padded to a multiple of `step`; None where they are not printed."""
    vocabulary = _count(row, "vocab", DEEPSEEK if row["arch"] == "moe-mla" else 0)
    if not row["hidden"] or not vocabulary:
        return None
    return Shape(
        kind=row["arch"], layers=_count(row, "layers"), hidden=_count(row, "hidden"), heads=_count(row, "heads"),
        key_heads=_count(row, "kv_heads", _count(row, "heads")), inner=_count(row, "ffn"),
        vocabulary=-(-vocabulary // step) * step, sequence=_count(row, "seq_len"), head_size=_count(row, "head_dim", 0),
        experts=_count(row, "experts", 0), chosen=_count(row, "topk", 0), expert_inner=_count(row, "moe_ffn", 0),
    )  # fmt: skip


def _cluster(row: dict[str, str]) -> str:
    chip, devices = CHIPS.get(row["gpu"], row["gpu"]), _count(row, "n_gpus")
    node = min(devices, NODES.get(chip, NODE))
    return f"{chip}x{node}" + (f"*{devices // node}" if devices > node else "")


def _settings(row: dict[str, str]) -> RunSettings:
    """Of what the tables say: kernels fused by hand (bias, GELU, dropout, softmax, Adam), clipping at norm 1."""
    early = "no flash" in row["attention"] or "fused" in row["attention"]
    overlap = row["overlap"].startswith(("DP", "TP/DP")) or ("torch DDP" in row["overlap"] and row["pp"] == "1")
    return RunSettings(
        precision=SIXTEEN_BITS.get(row["precision"][:4].lower(), "bfloat16"), fusion=True, overlap=overlap,
        attention="eager" if early and "cuDNN" not in row["attention"] else "flash", clip_norm=1.0,
        float8=any(word in row["precision"] for word in ("FP8", "FP4")),
    )  # fmt: skip


def _layouts(row: dict[str, str], notes: list[str]) -> Iterator[MegatronDegrees]:
    """The layout that is printed, or every one that fits what is."""
    tensor, pipeline = _count(row, "tp", 0), _count(row, "pp", 0)
    if not tensor or not pipeline:
        tensor, pipeline = 8, 6
        notes.append("tensor and pipeline degree from the text for 2304 GPUs: 8 x 6")
    data = _count(row, "dp", _count(row, "n_gpus") // (tensor * pipeline * _count(row, "cp")))
    sequence = row["sp"] == "True" or (not row["sp"] and row["date"] >= "2022-06" and row["dataset"] != "vtrain")
    sequence = sequence and not row["dataset"].startswith("vtrain")
    sizes = [_count(row, "micro_batch")] if row["micro_batch"] else _sizes(_count(row, "global_batch", 0) // data)
    if len(sizes) > 1:
        notes.append("micro-batch not printed: the best by estimate")
    recompute = _recompute(row)
    if recompute is None:
        notes.append("recompute not printed: the best by estimate")
    turns = _turns(row, pipeline)
    if len(turns) > 1:
        notes.append("virtual stages not printed: the best by estimate")
    elif row["vpp"] == "" and pipeline > 1:
        notes.append("virtual stages not printed: none")
    again = (False, True) if recompute is None else (recompute,)
    for rows, sharding, virtual, remade in product(sizes, _shardings(row, data), turns, again):
        yield MegatronDegrees(
            tensor=tensor, pipeline=pipeline, data=data, virtual=virtual, rows=rows, sequence=sequence,
            expert=_count(row, "ep"), context=_count(row, "cp"), recompute=remade, sharding=sharding,
        )  # fmt: skip


def _sizes(rows: int) -> list[int]:
    return [size for size in (1, 2, 4, 8, 16) if size <= rows]


def _turns(row: dict[str, str], pipeline: int) -> tuple[int, ...]:
    """Stages a position: as printed; where pipelines overlap their messages, which only interleaved ones do, any."""
    if pipeline == 1 or row["vpp"]:
        return (_count(row, "vpp") if pipeline > 1 else 1,)
    share, rest = divmod(_count(row, "layers"), pipeline)
    if rest or "PP" not in row["overlap"]:
        return (1,)
    return tuple(turns for turns in range(1, share + 1) if share % turns == 0)


def _recompute(row: dict[str, str]) -> bool | None:
    told = row["recompute"]
    return True if told.startswith("full") else False if told.startswith("selective") else None


def _shardings(row: dict[str, str], data: int) -> tuple[Sharding, ...]:
    """How the state may lie; a distributed optimizer moves what data parallelism does and holds what sharding does."""
    if data == 1:
        return ("none",)
    if "FSDP" in row["zero"] and "dist-opt" not in row["zero"]:
        return ("parameters",)
    return ("none", "gradients") if "dist" in row["zero"] else ("none",)


def _notes(row: dict[str, str]) -> Iterator[str]:
    """What is estimated otherwise than it was run."""
    if "FP4" in row["precision"]:
        yield "products in FP4: estimated in FP8"
    if row["recompute"].startswith("selective"):
        yield "selective recompute: estimated without any"
    if "LoRA" in row["model"]:
        yield "LoRA: estimated as full training"
    if "dist" in row["zero"]:
        yield "distributed optimizer: state replicated, or gradients sharded too, the best that fits"


def _unmodelled(row: dict[str, str]) -> Iterator[str]:
    """What there is no layout for."""
    yield from _uncaptured(row)
    if _count(row, "ep") > 1 and _count(row, "tp") > 1:
        yield f"expert parallel {row['ep']} over the devices of tensor {row['tp']} too: experts along both axes"
    stage = _count(row, "n_gpus") // (_count(row, "pp", 0) or 1)
    if _count(row, "ep") > stage:
        yield f"experts over {row['ep']} devices are printed where a stage of {row['pp']} has {stage}"
    if not row["global_batch"]:
        yield "no batch printed"


def _uncaptured(row: dict[str, str]) -> Iterator[str]:
    """Models that are not captured here, and why."""
    if not row["hidden"]:
        yield f"{row['model']} ({row['arch']}): its sizes are not printed"
    elif row["arch"] == "moe" and "GPT OSS" in row["model"]:
        yield "GPT OSS: its attention with sinks is captured as plain products, for which no fused kernel is estimated"
    elif row["arch"] not in ("gpt", "llama", "moe", "moe-mla"):
        yield row["arch"]
