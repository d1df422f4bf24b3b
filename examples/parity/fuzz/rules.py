"""What no plan, cluster or configuration can mean, said of values that were read, apart from placer's own rules.

A value is what pydantic gives of a dataclass in Python: nested dicts, tuples, numbers. Each rule yields sentences that
begin with the place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Value = Mapping[str, Any]

# More than any machine of this decade: bytes, FLOPs and counts fit in 63 bits, rates and times below this.
MOST = 1e30
_MAY_BE_NEGATIVE = re.compile(r"(settings\.)?seed|.*ignore_index|graph\.classes\..*|graph\.inputs\..*\.shape\..*")
# FLOPs of a large step are more, and a seed is of 64 bits.
_LONG = re.compile(r"flops|^seed$")
_ABOVE_ZERO = ("bandwidth", "memory_bandwidth", "read_bandwidth", "write_bandwidth", "share", "memory_share", "ports",
               "cores",
               "step_seconds", "bound", "degree", "inner", "bucket_bytes", "rows", "clip_norm",
               "collective_share")  # fmt: skip
_DTYPES = {
    "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "int64",
    "int32",
    "int16", "int8", "uint8", "bool",
}  # fmt: skip
_RATED = {"float64", "float32", "tfloat32", "bfloat16", "float16", "float8"}


def numbers(value: object, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number with its place."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from numbers(one, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from numbers(one, f"{place}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def wrong_numbers(value: object) -> Iterator[str]:
    """Numbers that are none, endless, negative where less than nothing means nothing, or beyond all machines."""
    for place, number in numbers(value):
        if not math.isfinite(number):
            yield f"{place} is {number}"
        elif number < 0 and not _MAY_BE_NEGATIVE.fullmatch(place):
            yield f"{place} is negative: {number}"
        elif abs(number) > (2**63 - 1 if isinstance(number, int) and not _LONG.search(place) else MOST):
            yield f"{place} is {number:.3g}, beyond all machines"
        elif number == 0 and place.rpartition(".")[2] in _ABOVE_ZERO:
            yield f"{place} is 0"


def wrong_cluster(cluster: Value) -> Iterator[str]:
    """A cluster without devices, rates or order in its curves, or with shares that no machine reaches."""
    yield from (f"cluster.{wrong}" for wrong in wrong_numbers(cluster))
    total = 0
    for node, count in cluster["groups"]:
        total += count * sum(many for _, many in node["devices"])
        for device, many in node["devices"]:
            yield from _wrong_device(device)
            if many < 1:
                yield f"{node['name']} has {many} devices of a kind"
        if count < 1:
            yield f"{count} nodes {node['name']}"
    if not 1 <= total <= 2**20:
        yield f"the cluster has {total} devices"


def _wrong_device(device: Value) -> Iterator[str]:
    rates = [dtype for dtype, _ in device["rates"]]
    if "float32" not in rates or len(set(rates)) != len(rates) or not _RATED.issuperset(rates):
        yield f"device {device['name']} has rates of {rates}"
    if any(not rate > 0 for _, rate in device["rates"]) or device["memory_bytes"] < 1:
        yield f"device {device['name']} has a rate or memory of nothing"
    if device["memory_share"] > 1.5 or device["backend"] not in ("cpu", "cuda"):
        yield f"device {device['name']} has memory_share {device['memory_share']}, backend {device['backend']}"
    for curve in (device["curve"], *(curve for _, curve in device["curves"])):
        sizes = [size for size, _ in curve["points"]]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] <= 0:
            yield f"a curve of {device['name']} has points at {sizes[:5]}"
        if any(not 0 < share <= 1.5 for _, share in curve["points"]):
            yield f"a curve of {device['name']} has a share of nothing, or above all"


def wrong_plan(plan: Value) -> Iterator[str]:
    """Every rule of a plan that is legal by its own word."""
    yield from wrong_numbers({name: value for name, value in plan.items() if name != "cluster"})
    yield from wrong_cluster(plan["cluster"])
    yield from _wrong_settings(plan["settings"])
    yield from _wrong_stages(plan)
    yield from wrong_graph(plan["graph"])
    if not plan["microbatches"] or min(plan["microbatches"]) < 1:
        yield f"microbatches are {plan['microbatches'][:5]}"
    if sum(plan["microbatches"]) != plan["graph"]["rows"]:
        yield f"microbatches have {sum(plan['microbatches'])} rows of {plan['graph']['rows']}"
    if plan["model"]["kind"] not in ("factory", "config", "module"):
        yield f"the model is a {plan['model']['kind']}"


def _wrong_settings(settings: Value) -> Iterator[str]:
    precisions = ("float64", "float32", "bfloat16", "float16", "bfloat16-autocast")
    if settings["precision"] not in precisions or settings["optimizer"] not in ("adamw", "sgd"):
        yield f"settings.precision is {settings['precision']}, optimizer {settings['optimizer']}"
    if not all(0 <= beta < 1 for beta in settings["betas"]) or len(settings["betas"]) != 2:
        yield f"settings.betas are {settings['betas']}"


def _wrong_stages(plan: Value) -> Iterator[str]:
    size = sum(count * sum(many for _, many in node["devices"]) for node, count in plan["cluster"]["groups"])
    reached = 0
    for index, stage in enumerate(plan["stages"]):
        if stage["first"] != reached or stage["last"] <= stage["first"]:
            yield f"stage {index} runs from {stage['first']} to {stage['last']}"
        reached = stage["last"]
        devices = stage["devices"]
        if not devices or len(set(devices)) != len(devices) or not all(0 <= one < size for one in devices):
            yield f"stage {index} is on devices {devices[:9]} of {size}"
        if len(devices) % max(1, stage["degree"]):
            yield f"stage {index} has replicas of {stage['degree']} on {len(devices)} devices"
        if stage["shares"] and (len(stage["shares"]) * stage["degree"] != len(devices) or min(stage["shares"]) < 1):
            yield f"stage {index} has shares {stage['shares'][:9]}"
        if stage["layout"] is not None and not 0 <= stage["layout"] < len(plan["layouts"]):
            yield f"stage {index} has layout {stage['layout']} of {len(plan['layouts'])}"
    if reached != len(plan["graph"]["blocks"]):
        yield f"the stages end at block {reached} of {len(plan['graph']['blocks'])}"
    for index, layout in enumerate(plan["layouts"]):
        if len(layout["splits"]) != len(plan["graph"]["classes"]) or layout["degree"] % max(1, layout["inner"]):
            inside = f"{layout['inner']} of {layout['degree']} devices inside"
            yield f"layout {index} has {len(layout['splits'])} splits, {inside}"


def wrong_graph(graph: Value) -> Iterator[str]:
    """References that lead nowhere, or forward; sizes below zero; parameters that do not fit their class."""
    rows, classes = graph["rows"], graph["classes"]
    for index, kind in enumerate(classes):
        yield from (f"classes.{index}: {wrong}" for wrong in _wrong_class(kind, rows))
    names = {one["name"] for one in graph["inputs"]}
    if len(names) != len(graph["inputs"]):
        yield "two inputs have one name"
    yield from (f"inputs: {wrong}" for one in graph["inputs"] for wrong in _wrong_tensor(one["tensor"], rows))
    made = {f"x:{name}" for name in names}
    shapes: dict[str, object] = {}
    for index, block in enumerate((graph["prologue"], *graph["blocks"])):
        if not 0 <= block["kind"] < len(classes):
            yield f"block {index - 1} is of class {block['kind']} of {len(classes)}"
            return
        kind = classes[block["kind"]]
        lost = [name for name in block["inputs"] if name not in made]
        if lost:
            yield f"block {index - 1} reads {lost[0]}, which nothing before it makes"
        if len(block["inputs"]) != len(kind["inputs"]) or len(block["parameters"]) != len(kind["parameters"]):
            yield f"block {index - 1} has other inputs or parameters than its class"
        for name, parameter in zip(block["parameters"], kind["parameters"], strict=False):
            if shapes.setdefault(name, parameter["shape"]) != parameter["shape"]:
                yield f"{name} has two shapes"
        made |= {f"b{index - 1}.{output}" for output in range(len(kind["outputs"]))}
    loss = graph["loss"]
    lost = [name for name in (*graph["outputs"], *filter(None, [loss["value"]])) if name not in made]
    if lost or (loss["labels"] and loss["labels"] not in names):
        yield f"outputs or loss name {lost or loss['labels']}, which nothing makes"


def _wrong_class(kind: Value, rows: int) -> Iterator[str]:
    made = {f"i{index}" for index in range(len(kind["inputs"]))} | {
        f"p{index}" for index in range(len(kind["parameters"]))
    }
    for tensor in (*kind["inputs"], *(output for op in kind["ops"] for output in op["outputs"])):
        yield from _wrong_tensor(tensor, rows)
    for parameter in kind["parameters"]:
        if parameter["dtype"] not in _DTYPES or any(size < 0 for size in parameter["shape"]):
            yield f"a parameter is {parameter['dtype']} {parameter['shape']}"
    for index, op in enumerate(kind["ops"]):
        lost = [name for name in op["inputs"] if name not in made]
        if lost or any(not 0 <= number < len(op["inputs"]) for number in op["kept_again"]):
            yield f"op {index} reads {lost}, keeps {op['kept_again']}"
        made |= {f"o{index}.{output}" for output in range(len(op["outputs"]))}
        sizes = {name: value for name, value in op.items() if name.endswith(("_flops", "_bytes"))}
        below = [name for name, (fixed, per_row) in sizes.items() if fixed + per_row * rows < 0]
        if below or (op["seconds"] is not None and min(op["seconds"]) < 0):
            yield f"op {index} has {below or 'seconds'} below zero"
    lost = [name for name in kind["outputs"] if name not in made]
    kept = [*_beyond(kind["kept_inputs"], kind["inputs"]), *_beyond(kind["kept_outputs"], kind["outputs"])]
    if lost or kept:
        yield f"outputs {lost} are made nowhere, or {kept} are kept"


def _beyond(indices: Sequence[int], items: Sequence[object]) -> list[int]:
    return [index for index in indices if not 0 <= index < len(items)]


def _wrong_tensor(tensor: Value, rows: int) -> Iterator[str]:
    if tensor["dtype"] not in _DTYPES:
        yield f"a tensor is of {tensor['dtype']}"
    if any(fixed + per_row * rows < 0 for fixed, per_row in tensor["shape"]):
        yield f"a tensor has a size below zero: {tensor['shape']}"
    if tensor["dims"] and len(tensor["dims"]) != len(tensor["shape"]):
        yield f"a tensor of {len(tensor['shape'])} dims names {len(tensor['dims'])}"
