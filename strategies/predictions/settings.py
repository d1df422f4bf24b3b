"""The settings of a row's run, read from what it prints of precision, attention, overlap and framework."""

from __future__ import annotations

import re

from placer.plans.settings import Attention, Precision, RunSettings, Stack
from placer.strategies.predictions.rows import Row
from placer.strategies.predictions.shapes import binned, examples_per_row

# The year of the first fused attention without scores in memory (FlashAttention, arXiv:2205.14135) in frameworks.
FLASH_SINCE = "2022-12"
# The year of Megatron-Core's layers (PyPI, megatron-core 0.2.0 of July 2023).
CORE_SINCE = "2023-07"
# torchtitan compiles blocks one by one, and the loss as well, but ceased to (pytorch/torchtitan, pull request 755, of
# December 2024) until pull request 1033.
COMPILED_LOSS = "2025-04"
# Of the second (arXiv:2307.08691); in torch with 2.2.
SECOND_FLASH_SINCE = "2023-07"


def settings_of(row: Row) -> RunSettings:
    """The settings; precision is bfloat16 where none is printed."""
    precision = row.text("precision").lower()
    full = _full_precision(precision)
    return RunSettings(
        precision="float32" if full else _half(precision), tf32="tf32" in precision, fusion=_fused(row),
        fused_loss="torchtitan" not in row.text("framework").lower() or row.text("date") >= COMPILED_LOSS,
        stack=_stack(row),
        overlap=_overlaps(row), attention=_attention(row), clip_norm=1.0,
        float8=bool(re.search(r"fp8|float8", precision)), float4="fp4" in precision,
        tensor_overlap=row.count("tp") > 1 and _overlaps_inside(row),
        optimizer="sgd" if _of_images(row) else "adamw", momentum=0.9 if _of_images(row) else 0.0,
        batch_norm="microbatch" if _of_images(row) else "exact",
    )  # fmt: skip


def notes_of(row: Row) -> tuple[str, ...]:
    """What of a row is estimated otherwise than it ran, of its settings."""
    notes = []
    if "LoRA" in row.text("model"):
        notes.append("LoRA: the rank of its adapters is not printed, 32 is taken")
    if "GPT OSS" in row.text("model"):
        notes.append("attention with sinks and windows: estimated whole and without")
    if examples_per_row(row) > 1:
        tokens = row.count("seq_len") // examples_per_row(row)
        notes.append(f"examples packed into rows: estimated as rows of {tokens} tokens each")
    if binned(row):
        notes.append(f"rows in bins by length: estimated with {binned(row)} tokens each, their mean")
    return tuple(notes)


def _of_images(row: Row) -> bool:
    return row.text("arch") in ("Classification", "cnn", "wresnet", "W-ResNet")


def _full_precision(told: str) -> bool:
    return told.startswith(("fp32", "tf32", "float32"))


def _half(told: str) -> Precision:
    """Sixteen bits with float32 masters; so is what runs under autocast: chips before 2020 have no bfloat16."""
    return "float16" if told.startswith("fp16") or re.search(r"amp fp16|fp16-style", told) else "bfloat16"


def _fused(row: Row) -> bool:
    """Whether chains of ops run as one kernel: compiled, or the kernels that Megatron's family fuses by hand."""
    told = f"{row.text('framework')} {row.text('overlap')}".lower()
    if "compile" in told:
        return True
    return any(word in told for word in ("megatron", "nemo", "jax", "transformer engine"))


def _stack(row: Row) -> Stack:
    """Megatron's layers, those of its Core, or who runs them; torch's with FSDP."""
    told = row.text("framework").lower()
    if not re.search(r"megatron|nemo", told):
        return "fsdp" if "fsdp" in f"{told} {row.text('zero')}".lower() else "torch"
    if "deepspeed" in told:
        return "megatron-deepspeed"
    if row.text("date") < CORE_SINCE:
        return "megatron"
    return "nemo" if re.search(r"nemo|bridge", told) else "megatron-core"


def _overlaps(row: Row) -> bool:
    """Whether gradients are summed beside the backward pass."""
    told = row.text("overlap").lower()
    if told.startswith("none"):
        return "fsdp" in row.text("zero").lower()
    if "torch ddp overlap when pp=1" in told:
        return row.text("pp") == "1"
    if told:
        return True
    return not any(word in row.text("framework").lower() for word in ("megatron", "deepspeed"))


def _overlaps_inside(row: Row) -> bool:
    """Whether collectives of tensor parallelism run beside products."""
    told = row.text("overlap")
    return re.search(r"\bTP\b|async TP|tp-comm-overlap", told) is not None and "vanilla TP" not in told


def _attention(row: Row) -> Attention:
    """Whether the scores of attention are written to memory, and whose kernel it is where they are not."""
    told = row.text("attention").lower()
    if re.search(r"cudnn|\bte\b|transformer engine", told):
        return "tuned"
    if re.search(r"(?<!no )(?<!pre )flash|sdpa", told):
        return "flash1" if "v1" in told or row.text("date")[:7] < SECOND_FLASH_SINCE else "flash"
    if told or row.text("date")[:7] < FLASH_SINCE:
        return "eager"
    return "tuned" if re.search(r"nemo|megatron", row.text("framework").lower()) else "flash"
