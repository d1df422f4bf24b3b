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

# Its mixed_precision has no name for float32, and fp16_mixed sums gradients in float16.
ABILITIES = replace(megatron.ABILITIES, framework="Megatron-Bridge", precisions=frozenset(("bfloat16",)))


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout Megatron-Bridge has no words for."""
    yield from megatron.lacks(layout, ABILITIES)


def overrides(layout: HybridLayout) -> dict[str, object]:
    """Section by section the fields that the plan sets."""
    flags = megatron.flags(layout)
    model: dict[str, object] = megatron.model_parallel(layout)
    model |= {"seq_length": layout.length} if layout.length else {}
    zero1 = bool(flags.get("use_distributed_optimizer"))
    ddp: dict[str, object] = {"use_distributed_optimizer": zero1}
    # Recipes gather parameters beside the forward, which whole ones are not.
    ddp |= {} if zero1 else {"overlap_param_gather": False}
    ddp |= {name: flags[key] for name, key in _DDP.items() if key in flags}
    return {
        "model": model,
        "train": {"micro_batch_size": layout.micro_rows, "global_batch_size": layout.rows},
        "ddp": ddp,
        "optimizer": {name: flags[key] for name, key in _OPTIMIZER.items() if key in flags}
        | {"use_distributed_optimizer": zero1},
        "scheduler": scheduler(layout),
        **({"dataset": {"seq_length": layout.length}} if layout.length else {}),
        "mixed_precision": "bf16_mixed",
    }


def scheduler(layout: HybridLayout) -> dict[str, object]:
    """One rate and one decay throughout: a recipe's scheduler has its own, and writes both over the optimizer's."""
    decay = layout.settings.weight_decay
    return {
        "lr_decay_style": "constant",
        "lr_warmup_iters": 0,
        "start_weight_decay": decay,
        "end_weight_decay": decay,
        "weight_decay_incr_style": "constant",
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
