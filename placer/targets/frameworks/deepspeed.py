"""DeepSpeed 0.19: its JSON configuration. Pipelines are said in Python there (`PipelineModule`), not in this file.

Keys as in docs/_pages/config-json.md; batch = micro batch x accumulation x data-parallel ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout

ABILITIES = Abilities(
    framework="DeepSpeed's configuration", degrees=frozenset(("tensor", "context")), offloads=True,
    precisions=frozenset(("float32", "bfloat16", "float16", "bfloat16-autocast")),
)  # fmt: skip
STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout DeepSpeed's configuration has no words for."""
    yield from ABILITIES.lacks(layout)
    if layout.tensor > 1 and layout.sharding == "parameters":
        yield "DeepSpeed's tensor parallelism beside ZeRO 3 is for inference only"
    if layout.recompute:
        yield "DeepSpeed's configuration does not say which modules run again; the model's own code does"


def configuration(layout: HybridLayout) -> dict[str, object]:
    """The document."""
    settings = layout.settings
    zero: dict[str, object] = {"stage": STAGES[layout.sharding]}
    if layout.sharding in ("optimizer", "gradients"):
        zero |= {"reduce_bucket_size": max(1, layout.bucket_bytes // _element(layout))}
        zero |= {"overlap_comm": settings.overlap}
    if settings.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    found: dict[str, object] = {
        "train_batch_size": layout.rows,
        "train_micro_batch_size_per_gpu": layout.micro_rows,
        "gradient_accumulation_steps": layout.microbatches,
        "gradient_clipping": settings.clip_norm or 0.0,
        "zero_optimization": zero,
        "optimizer": _optimizer(layout),
    }
    if settings.precision == "bfloat16-autocast":
        # Without the list, ZeRO sums the gradients of linear layers and convolutions in bfloat16.
        found["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    elif settings.precision != "float32":
        found["bf16" if settings.precision == "bfloat16" else "fp16"] = {"enabled": True}
    if sums_in_float32(layout) and settings.precision == "bfloat16":
        found |= {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    if settings.optimizer == "sgd" and layout.sharding != "none":
        found["zero_allow_untested_optimizer"] = True  # refused otherwise
    if layout.tensor > 1:
        found["tensor_parallel"] = {"autotp_size": layout.tensor}
    if layout.context > 1:
        found["sequence_parallel_size"] = layout.context
    return found


def text(layout: HybridLayout, _base: str, _notes: tuple[str, ...]) -> str:
    """The JSON, which has no comments."""
    return json.dumps(configuration(layout), indent=2) + "\n"


def sums_in_float32(layout: HybridLayout) -> bool:
    """Whether it sums gradients in float32: of bfloat16 it can be told to under ZeRO alone, of float16 it is not."""
    if layout.settings.precision == "bfloat16":
        return layout.sharding != "none"
    return layout.settings.precision != "float16"


def _element(layout: HybridLayout) -> int:
    """Bytes of an element of a gradient as it is summed."""
    return 4 if sums_in_float32(layout) else 2


def _optimizer(layout: HybridLayout) -> dict[str, object]:
    settings = layout.settings
    if settings.optimizer == "sgd":
        rule = {"lr": settings.learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        return {"type": "SGD", "params": rule}
    return {
        "type": "AdamW",
        "params": {"lr": settings.learning_rate, "betas": list(settings.betas), "eps": settings.epsilon,
                   "weight_decay": settings.weight_decay, "torch_adam": True},
    }  # fmt: skip
