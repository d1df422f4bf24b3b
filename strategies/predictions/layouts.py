"""The layout of a row: the one that is printed, or, where not all of it is, each that fits what is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from placer.plans.plan import Recompute, Sharding
from placer.plans.settings import MEGATRON, MEGATRON_CORE
from placer.strategies.baselines.megatron import MegatronDegrees
from placer.strategies.predictions.rows import Row
from placer.strategies.predictions.settings import settings_of
from placer.strategies.predictions.shapes import examples_per_row

# Rows of a microbatch that are tried where none are printed.
SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """What a row may have been: `rows` of the global batch (examples, where these are packed into rows), and the
    layouts; what of them was not printed."""

    rows: int
    degrees: tuple[MegatronDegrees, ...]
    notes: tuple[str, ...] = ()


def layouts_of(row: Row, layers: int) -> Layouts | str:
    """The layouts of a row of a model of so many layers, or why there are none."""
    tensor, pipeline = _printed(row)
    if not tensor or not pipeline:
        return "the layout is not printed"
    context = row.count("cp", 1)
    data, rest = divmod(row.devices, tensor * pipeline * context)
    expert = row.count("ep", 1)
    if rest or not data:
        return f"{row.devices} devices are no multiple of tensor {tensor} x pipeline {pipeline} x context {context}"
    if expert > 1 and tensor > 1 and row.count("etp", tensor) > 1:
        return f"expert parallel {expert} over the devices of tensor {tensor} too: experts along both axes"
    if expert > 1 and data % expert:
        return f"experts over {expert} devices are printed where a stage of {pipeline} has {data}"
    rows = row.count("global_batch") or row.count("micro_batch") * row.count("grad_accum", 1) * data
    if not rows:
        return "no batch printed"
    if rows < data:
        return f"a batch of {rows} rows is printed for {data} replicas"
    return _possible(row, layers, rows * examples_per_row(row), (tensor, pipeline, data, context, expert))


def _printed(row: Row) -> tuple[int, int]:
    """Tensor and pipeline degree, by the columns or by the notes (TP8 PP6); of data parallelism and one device both are
    1; 0 where nothing says it."""
    noted = re.search(r"\bTP(\d+) PP(\d+)", row.text("notes"))
    alone = row.devices == 1 or re.search(r"ddp|fsdp|zero|\bdp\b", row.text("zero").lower()) is not None
    printed = row.count("tp"), row.count("pp")
    if not any(printed) and noted is not None and not row.count("dp"):
        return int(noted[1]), int(noted[2])
    if not any(printed):
        return (1, 1) if alone or row.count("dp") == row.devices else (0, 0)
    return printed[0] or 1, printed[1] or 1


def _possible(row: Row, layers: int, rows: int, degrees: tuple[int, int, int, int, int]) -> Layouts:
    tensor, pipeline, data, context, expert = degrees
    examples, printed = examples_per_row(row), row.count("micro_batch")
    sizes = [examples * size for size in ([printed] if printed else _sizes(rows // examples // data))]
    again, turns, every = _recompute(row), _turns(row, pipeline, layers), _every(row)
    ways: tuple[Recompute, ...] = (False, "selective", True)
    told = {
        "micro-batch": len(sizes) > 1,
        "recompute": again is None,
        "virtual stages": len(turns) > 1,
    }
    made = tuple(
        MegatronDegrees(
            tensor=tensor, pipeline=pipeline, data=data, virtual=virtual, rows=size, sequence=_cuts_sequence(row),
            expert=expert, context=context, recompute=remade, every=every, sharding=_sharding(row, data * context),
        )
        for size, virtual, remade in product(sizes, turns, ways if again is None else (again,))
    )  # fmt: skip
    notes = [f"{name} not printed: the best by estimate" for name, open_ in told.items() if open_]
    return Layouts(rows=rows, degrees=made, notes=(*notes, *_notes(row)))


def _sizes(most: int) -> list[int]:
    return [size for size in SIZES if size <= most]


def _cuts_sequence(row: Row) -> bool:
    """Whether norms lie cut on the sequence: as printed; else since it was published (arXiv:2205.05198)."""
    told = row.text("sp")
    return (
        told == "True"
        if told
        else row.text("date") >= "2022-06" and "megatron-deepspeed" not in row.text("framework").lower()
    )


def _turns(row: Row, pipeline: int, layers: int) -> tuple[int, ...]:
    """Stages a position: as printed; any where pipelines overlap their messages, which only interleaved ones do, and of
    NeMo, whose recipes interleave."""
    if pipeline == 1 or row.count("vpp"):
        return (row.count("vpp", 1) if pipeline > 1 else 1,)
    share, rest = divmod(layers, pipeline)
    interleaves = "PP" in row.text("overlap") or "nemo" in row.text("framework").lower()
    if rest or not interleaves:
        return (1,)
    return tuple(turns for turns in range(1, share + 1) if share % turns == 0)


def _recompute(row: Row) -> Recompute | None:
    """What runs again in backward; None where it is not said, but of torchtitan, whose configurations say `selective`
    (its train_configs/llama3_8b.toml, [activation_checkpoint]).

    Megatron's `selective` is the scores of attention: where a fused kernel makes these again anyway nothing more, if no
    other modules are named.
    """
    told = row.text("recompute").lower()
    if told in ("", "not stated") and "torchtitan" in row.text("framework").lower():
        return "selective"
    if told.startswith(("full", "yes")) or _every(row) > 1:
        return True
    if told.startswith("none"):
        return False
    if not told.startswith("selective"):
        return None
    settings = settings_of(row)
    more = settings.attention == "eager" or settings.stack not in MEGATRON or "modules" in told
    return "selective" if more else False


def _every(row: Row) -> int:
    """Of how many layers one runs again: every second where torchtitan's `selective` is said to be of layers."""
    told = row.text("recompute").lower()
    return 2 if told.startswith("selective") and "layer" in told and "torch" in row.text("framework").lower() else 1


def _sharding(row: Row, data: int) -> Sharding:
    """How the state lies over replicas: what ZeRO, FSDP and distributed optimizers are called; where Megatron-DeepSpeed
    says nothing, its first stage (BigScience's scripts: ZERO_STAGE=1). Megatron-Core's `DDP` is its wrapper, with the
    distributed optimizer in what is published of it (NeMo, collections/llm/recipes/optim/adam.py; Megatron-LM,
    examples/llama/train_llama3_8b_h100_fp8.sh: --use-distributed-optimizer). torchtitan gathers the weights of a
    pipeline's stages once a step (its models/llama3/infra/parallelize.py, `reshard_after_forward = not pp_enabled`)."""
    told = row.text("zero").lower() or ("1" if "megatron-deepspeed" in row.text("framework").lower() else "")
    if data == 1:
        return "none"
    if told in ("", "ddp") and settings_of(row).stack in MEGATRON_CORE:
        return "optimizer"
    if (
        "shard_grad_op" in told
        or ("torchtitan" in row.text("framework").lower() and row.count("pp") > 1)
        or re.search(r"zero-?2", told)
        or told == "2"
    ):
        return "gradients"
    if "dist-opt" in told or "distributed" in told or re.search(r"zero-?1", told) or told == "1":
        return "optimizer"
    if "fsdp" in told or re.search(r"zero-?3", told) or told == "3":
        return "parameters"
    return "none"


def _notes(row: Row) -> Iterator[str]:
    """What is estimated otherwise than it was run."""
    if not row.text("zero") and _sharding(row, row.devices) == "optimizer":
        yield "how state is divided not printed: its optimizer's over replicas"
    if "hybrid" in row.text("zero").lower():
        yield "state divided within groups of replicas: estimated divided over all"
