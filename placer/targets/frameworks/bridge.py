"""Megatron-Bridge (August 2026): a YAML of overrides that OmegaConf merges into a recipe's `ConfigContainer`.

Keys as in docs/recipe-usage.md and docs/training/config-container-overview.md; what Megatron-LM has words for, Bridge
has, since it sets the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import yaml

from placer.targets.frameworks import megatron
from placer.targets.frameworks.hybrid_layout import HybridLayout

ABILITIES = replace(megatron.ABILITIES, framework="Megatron-Bridge")


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout Megatron-Bridge has no words for."""
    yield from (reason.replace("Megatron-LM", "Megatron-Bridge") for reason in megatron.lacks(layout))


def overrides(layout: HybridLayout) -> dict[str, object]:
    """Section by section the fields that the plan sets."""
    flags = megatron.flags(layout)
    model: dict[str, object] = megatron.model_parallel(layout)
    model |= {"seq_length": layout.length} if layout.length else {}
    zero1 = bool(flags.get("use_distributed_optimizer"))
    ddp: dict[str, object] = {"use_distributed_optimizer": zero1}
    ddp |= {name: flags[key] for name, key in _DDP.items() if key in flags}
    return {
        "model": model,
        "train": {"micro_batch_size": layout.micro_rows, "global_batch_size": layout.rows},
        "ddp": ddp,
        "optimizer": {name: flags[key] for name, key in _OPTIMIZER.items() if key in flags}
        | {"use_distributed_optimizer": zero1},
        **({"dataset": {"seq_length": layout.length}} if layout.length else {}),
        **({"mixed_precision": _MIXED[layout.settings.precision]} if layout.settings.precision in _MIXED else {}),
    }


def text(layout: HybridLayout, _base: str, notes: tuple[str, ...]) -> str:
    """The YAML."""
    return "".join(f"# {note}\n" for note in notes) + yaml.safe_dump(overrides(layout), sort_keys=False)


_DDP = {
    "overlap_grad_reduce": "overlap_grad_reduce",
    "bucket_size": "ddp_bucket_size",
    "use_megatron_fsdp": "use_megatron_fsdp",
    "data_parallel_sharding_strategy": "data_parallel_sharding_strategy",
}
_OPTIMIZER = {
    "optimizer": "optimizer", "lr": "lr", "adam_beta1": "adam_beta1", "adam_beta2": "adam_beta2",
    "adam_eps": "adam_eps", "sgd_momentum": "sgd_momentum", "weight_decay": "weight_decay", "clip_grad": "clip_grad",
    "optimizer_cpu_offload": "optimizer_cpu_offload", "optimizer_offload_fraction": "optimizer_offload_fraction",
}  # fmt: skip
_MIXED = {"bfloat16": "bf16_mixed", "float16": "fp16_mixed"}
