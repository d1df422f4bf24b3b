"""Megatron-LM (flags of August 2026, commit d98e8a6; layout strings since megatron-core 0.13): a file of arguments.

One flag a line, `#` begins a comment: `pretrain_gpt.py $(grep -v '^#' FILE)` beside the flags of model and data. Read
in megatron/training/arguments.py and core/transformer/pipeline_parallel_layer_layout.py. The data-parallel degree is
not said: Megatron takes what is left of the ranks.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout
from placer.targets.frameworks.layer_stack import StagePart

ABILITIES = Abilities(
    framework="Megatron-LM", schedules=frozenset(("1f1b", "interleaved")),
    degrees=frozenset(("tensor", "context", "expert")), precisions=frozenset(("float32", "bfloat16", "float16")),
    offloads=True, selective=True, some_layers=True,
)  # fmt: skip
STRATEGIES = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
# Bytes of an element of a gradient bucket: Megatron sums gradients in float32 where weights have 16 bits.
GRADIENT_BYTES = 4


def lacks(layout: HybridLayout, abilities: Abilities = ABILITIES) -> Iterator[str]:
    """What of a layout Megatron-LM, or what is built on it, has no words for."""
    yield from abilities.lacks(layout)
    name = abilities.framework
    if layout.stack is None:
        yield f"{name} trains stacks of alike layers, and the model has none or several"
    if layout.settings.optimizer != "adamw" and layout.sharding == "optimizer" and layout.data_ranks > 1:
        # core/optimizer/distrib_optimizer.py asserts it.
        yield f"{name} shards the state of Adam alone (ZeRO 1), and the plan's optimizer is {layout.settings.optimizer}"
    if layout.pipeline > 1 and layout.sharding in STRATEGIES and layout.data_ranks > 1:
        yield "Megatron-FSDP beside a pipeline is not tried by Megatron's own tests; ZeRO 1 is"
    if layout.length and layout.context > 1 and layout.length % (2 * layout.context):
        yield f"{name} divides the {layout.length} tokens of a row by twice the context degree {layout.context}"


def model_parallel(layout: HybridLayout) -> dict[str, object]:
    """Fields of Megatron's `TransformerConfig` and `ModelParallelConfig` by their names; flags are the same with
    dashes."""
    fields: dict[str, object] = {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
    }
    if layout.expert > 1:
        fields["expert_tensor_parallel_size"] = layout.tensor
    if layout.sequence_parallel and layout.tensor > 1:
        fields["sequence_parallel"] = True
    if layout.pipeline > 1:
        fields["pipeline_model_parallel_layout"] = layout_string(layout.parts)
    if layout.recompute == "selective":  # of attention's core alone: scores, softmax and dropout
        fields["recompute_granularity"] = "selective"
    elif layout.recomputed is not None:
        count = layout.recomputed
        fields |= {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": count}
    elif layout.recompute:
        fields |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return fields


def flags(layout: HybridLayout) -> dict[str, object]:
    """All flags: of the layout, the batch, what is kept where, the precision and the optimizer."""
    settings = layout.settings
    found: dict[str, object] = model_parallel(layout)
    found |= {"micro_batch_size": layout.micro_rows, "global_batch_size": layout.rows}
    if layout.length:
        found["seq_length"] = layout.length
    if layout.data_ranks > 1:
        found |= _state(layout)
    if settings.precision == "bfloat16":
        found["bf16"] = True
    elif settings.precision == "float16":  # whose gradients it sums in 16 bits, unless it is told
        found |= {"fp16": True, "accumulate_allreduce_grads_in_fp32": True}
    if settings.offload == "optimizer":
        found |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    found |= {"optimizer": "adam" if settings.optimizer == "adamw" else "sgd", "lr": settings.learning_rate}
    if settings.optimizer == "adamw":
        found |= {"adam_beta1": settings.betas[0], "adam_beta2": settings.betas[1], "adam_eps": settings.epsilon}
    else:
        found["sgd_momentum"] = settings.momentum
    # Left out, the rate falls to nothing over the run.
    found |= {"lr_decay_style": "constant", "lr_warmup_iters": 0}
    return found | {"weight_decay": settings.weight_decay, "clip_grad": settings.clip_norm or 0.0}


def text(layout: HybridLayout, _base: str, notes: tuple[str, ...]) -> str:
    """The file of arguments."""
    lines = [f"# {note}" if note else "#" for note in notes]
    for name, value in flags(layout).items():
        flag = f"--{name.replace('_', '-')}"
        lines.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return "\n".join(lines) + "\n"


def layout_string(parts: tuple[StagePart, ...]) -> str:
    """The stages in order: `Et*3|t*4|t*3,L`; E is the embedding, t a layer, L the head with the loss."""
    return "|".join(_stage(part) for part in parts)


def _stage(part: StagePart) -> str:
    layers = f"t*{part.layers}" if part.layers > 1 else "t" * part.layers
    return ("E" if part.before else "") + layers + ((",L" if layers else "L") if part.behind else "")


def _state(layout: HybridLayout) -> dict[str, object]:
    """Flags of what is replicated and what is shared among data-parallel ranks."""
    found: dict[str, object] = {}
    if layout.sharding == "optimizer":
        found["use_distributed_optimizer"] = True
    if layout.sharding in STRATEGIES:
        found |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": STRATEGIES[layout.sharding]}
    if layout.settings.overlap and layout.sharding in ("none", "optimizer"):
        found |= {"overlap_grad_reduce": True, "ddp_bucket_size": max(1, layout.bucket_bytes // GRADIENT_BYTES)}
    return found
