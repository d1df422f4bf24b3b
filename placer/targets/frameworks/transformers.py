"""Hugging Face transformers 5.23: `DistributedConfig` for `from_pretrained(distributed_config=...)` and the
arguments of its Trainer, as one JSON of two parts.

Read in distributed/configuration_utils.py and training_args.py. Its pipelines have no microbatches and are for
inference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout

ABILITIES = Abilities(
    framework="transformers 5.23", shardings=frozenset(("none", "parameters")), degrees=frozenset(("tensor", "expert")),
    precisions=frozenset(("float32", "bfloat16-autocast")),
)  # fmt: skip
MIB = 2**20


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout transformers has no words for."""
    yield from ABILITIES.lacks(layout)
    if layout.expert > 1 and (layout.expert % layout.tensor or (layout.data_ranks * layout.tensor) % layout.expert):
        yield "transformers' expert degree is a multiple of its tensor degree and divides the ranks that share state"
    if layout.expert > 1 and layout.sharding == "none":
        yield "transformers' experts lie on the ranks that share parameters, and the plan has replicated state"
    if layout.on_cpus and layout.tensor > 1:  # seen with 5.24: accelerate, which it trains by, has no mesh there
        yield "transformers' Trainer has no tensor parallelism on CPUs"


def parts(layout: HybridLayout) -> dict[str, dict[str, object]]:
    """`distributed_config` and `training_arguments`."""
    settings = layout.settings
    distributed: dict[str, object] = {}
    if layout.tensor > 1:
        distributed |= {"tp_size": layout.tensor, "tp_plan": "auto"}
    if layout.sharding == "parameters" and layout.data_ranks > 1:
        distributed |= {"fsdp_size": layout.data_ranks, "fsdp_mixed_precision": settings.precision != "float32"}
    if layout.sharding == "none" and layout.data > 1:
        distributed["dp_replicate_size"] = layout.data
    if layout.expert > 1:
        distributed["ep_size"] = layout.expert
    arguments: dict[str, object] = {
        "per_device_train_batch_size": layout.micro_rows,
        "gradient_accumulation_steps": layout.microbatches,
        "activation_checkpointing": layout.recompute,
        "bf16": settings.precision != "float32",
        "learning_rate": settings.learning_rate,
        # Left out, the Trainer lets the rate fall to nothing over its steps.
        "lr_scheduler_type": "constant",
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.clip_norm or 0.0,
        "optim": "adamw_torch" if settings.optimizer == "adamw" else "sgd",
    }
    if settings.optimizer == "adamw":
        arguments |= {"adam_beta1": settings.betas[0], "adam_beta2": settings.betas[1],
                      "adam_epsilon": settings.epsilon}  # fmt: skip
    elif settings.momentum:
        arguments["optim_args"] = f"momentum={settings.momentum}"
    if layout.sharding == "none" and layout.data > 1:
        arguments["ddp_bucket_cap_mb"] = max(1, layout.bucket_bytes // MIB)
    return {"distributed_config": distributed, "training_arguments": arguments}


def text(layout: HybridLayout, _base: str, _notes: tuple[str, ...]) -> str:
    """The JSON, which has no comments."""
    return json.dumps(parts(layout), indent=2) + "\n"
