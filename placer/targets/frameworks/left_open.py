"""left_open(name, layout, vectors): what a file for a framework leaves to it, and what is done otherwise there.

Read in the frameworks' own code: Megatron-LM 0.19 (core/optimizer, training/arguments.py), transformers 5.24 (trainer),
DeepSpeed 0.19 (runtime/engine.py), torchtitan 0.3.0 (distributed/fsdp.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from placer.plans.settings import RunSettings
from placer.targets.frameworks import deepspeed
from placer.targets.frameworks.hybrid_layout import HybridLayout

# Who trains there, where biases and the weights of norms do not decay.
SPARED = {"transformers": "the Trainer leaves", "megatron": "Megatron leaves", "bridge": "Megatron leaves"}
# Whose loss is the mean of the means of microbatches and ranks; the others divide by the tokens of the whole batch.
MEANS_OF_MEANS = {
    "megatron": "; --calculate-per-token-loss takes the mean over tokens", "bridge": "", "deepspeed": "",
    "accelerate": "",
}  # fmt: skip


def left_open(name: str, layout: HybridLayout, vectors: bool) -> Iterator[str]:
    """Sentences. vectors: whether the model has parameters of fewer than two dims."""
    settings = layout.settings
    if name in SPARED and settings.weight_decay and vectors:
        yield f"{SPARED[name]} biases and norms out of weight decay, which placer's runs of the plan do not"
    if name in MEANS_OF_MEANS and layout.microbatches * layout.data_ranks > 1:
        yield (
            "losses of microbatches are averaged whatever number of labels each has, which is the mean of the whole "
            f"batch where they have equally many{MEANS_OF_MEANS[name]}"
        )
    if name == "megatron":
        yield "dropout is what the flags of the model say, 0.1 where they say nothing; the seed is Megatron's own"
    if name == "torchtitan" and settings.precision == "bfloat16-autocast":
        yield "all parameters are cast to bfloat16, those of norms too, which autocast leaves in float32"
    if name == "deepspeed" and not deepspeed.sums_in_float32(layout):
        yield f"gradients are summed in {settings.precision}, which placer's runs of the plan sum in float32"
    if name == "accelerate":
        yield f"in the program: {_rule(settings)}"


def _rule(settings: RunSettings) -> str:
    """The optimizer and the clipping that the program makes itself."""
    clip = "no clipping" if settings.clip_norm is None else f"gradients clipped to a norm of {settings.clip_norm}"
    rate, decay = f"a constant rate of {settings.learning_rate}", f"weight decay {settings.weight_decay}"
    if settings.optimizer == "sgd":
        return f"SGD, {rate}, momentum {settings.momentum}, {decay}, {clip}"
    first, second = settings.betas
    return f"AdamW, {rate}, betas {first} and {second}, eps {settings.epsilon}, {decay}, {clip}"
