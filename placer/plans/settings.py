"""RunSettings: what changes a step besides the plan. Explicit inputs of every prediction and of every run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from pydantic import Field

from placer.errors import UsageError
from placer.io.bounds import Amount, AmountAboveZero

Beta = Annotated[float, Field(ge=0, lt=1)]
Attention = Literal["eager", "flash1", "flash", "tuned"]
Stack = Literal["torch", "fsdp", "megatron", "megatron-deepspeed", "megatron-core", "nemo"]
Precision = Literal["float64", "float32", "bfloat16", "float16", "bfloat16-autocast"]
GradientCompression = Literal["none", "bfloat16", "float16"]
# Stacks whose layers are Megatron's of before its Core, and those that run the Core's.
EARLY_MEGATRON: frozenset[Stack] = frozenset({"megatron", "megatron-deepspeed"})
MEGATRON_CORE: frozenset[Stack] = frozenset({"megatron-core", "nemo"})
MEGATRON = EARLY_MEGATRON | MEGATRON_CORE
# Whose context parallelism gives a device two pieces of the queries of causal attention, from both ends, each with
# kernels that leave out what is hidden (Megatron-Core, docs of `context_parallel`; torch.distributed.tensor,
# `context_parallel`, whose load balance is on by default).
BALANCED: frozenset[Stack] = MEGATRON_CORE | {"fsdp"}
# Precisions whose weights, and with them gradients, are kept so.
SIXTEEN_BITS: frozenset[Precision] = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a training step.

    precision: `float32` and `float64` compute in that type; `bfloat16` and `float16` keep weights and activations in 16
    bits with float32 master weights in the optimizer (Megatron's way); `bfloat16-autocast` keeps float32 weights and
    computes products in bfloat16 under torch.autocast.
    attention: `eager` materialises the scores, `flash` does not; `tuned` is the same computed by the vendor's own
    kernel (cuDNN's), which Transformer Engine runs, and `flash1` by the first FlashAttention, which torch ran before
    2.2: other prices, the same run.
    recompute: `auto` lets the search choose per stage; `none`, `selective` (all but products) and `full` fix it.
    fusion: whether chains of memory-bound ops run as one kernel (torch.compile). fused_loss: those of the loss, too
    (prices and bytes only).
    stack: whose layers run, and who holds gradients (prices and bytes only; `placer/costs/memory/stacks.py`):
    `megatron`'s own, of 2019 to 2022, whose chains are kernels written by hand but for those of the loss, and
    `megatron-deepspeed`'s; `megatron-core`'s with Transformer Engine, which take more of the host, and `nemo`, which
    runs them with gradients in 16 bits; `fsdp` torch's layers under FSDP as torchtitan and Composer run it.
    tf32: whether products of float32 run in TensorFloat-32 where the device has it
    (torch.set_float32_matmul_precision("high"): another rounding than float32's, which a run has to be set to).
    float8, float4: whether products with weights run in 8 or in 4 bits, as Transformer Engine's do (prices only; not
    the casts to it).
    offload: `optimizer` keeps the optimizer's state in the memory of the host, which updates: gradients go there and
    weights come back. Where devices are processes of a CPU it lies there anyway.
    batch_norm: whose mean and variance batch norms take in training. `exact`: those of the whole batch, as on one
    device, so that it is not divided into replicas or microbatches; `microbatch`: each piece takes those of its own
    rows, as data-parallel training does elsewhere: another computation than that of one device.
    gradient_compression: the type in which replicas sum their gradients, cast to it before and back after, as torch's
    bf16_compress_hook does: half the bytes of float32, and another rounding than that of one device. What the devices
    of a replica sum among themselves, what stages share, the norm and the loss stay whole.
    overlap: whether gradient reduction may run beside the backward pass.
    tensor_overlap: whether collectives inside a replica run beside the products they belong to, in pieces, as
    Transformer Engine's and torch's asynchronous tensor parallelism do (prices only).
    expert_loads: of each expert of a layer how many tokens it gets beside the others (any unit; the same in all
    layers); costs are then those of the most loaded device. Empty: all alike.
    """

    precision: Precision = "float32"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Amount = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    epsilon: Amount = 1e-8
    weight_decay: Amount = 0.01
    momentum: Amount = 0.0
    clip_norm: AmountAboveZero | None = 1.0
    attention: Attention = "flash"
    recompute: Literal["auto", "none", "selective", "full"] = "auto"
    fusion: bool = False
    fused_loss: bool = True
    stack: Stack = "torch"
    tf32: bool = False
    float8: bool = False
    float4: bool = False
    offload: Literal["none", "optimizer"] = "none"
    batch_norm: Literal["exact", "microbatch"] = "exact"
    gradient_compression: GradientCompression = "none"
    overlap: bool = True
    tensor_overlap: bool = False
    expert_loads: tuple[Amount, ...] = ()

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < inf:
            raise UsageError(f"clip_norm is {self.clip_norm}; give a positive norm, or none for no clipping")
        for name in ("learning_rate", "epsilon", "weight_decay", "momentum"):
            value = getattr(self, name)
            if not 0 <= value < inf:
                raise UsageError(f"{name} is {value}; give a finite number that is not negative")
        if self.gradient_compression != "none" and self.precision in SIXTEEN_BITS:
            raise UsageError(
                f"gradient_compression is {self.gradient_compression} with precision {self.precision}, whose gradients "
                "have 16 bits until float32 sums them; leave it out, or take float32, float64 or bfloat16-autocast"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"betas are {self.betas}; give two numbers from 0 to below 1")
        bad = [load for load in self.expert_loads if not 0 <= load < inf]
        if bad or (self.expert_loads and not sum(self.expert_loads)):
            found = f"holds {bad[0]}" if bad else "is zero for every expert"
            raise UsageError(f"expert_loads {found}; give finite loads that are not negative, some above zero")


def state_count(settings: RunSettings) -> int:
    """Tensors of optimizer state per parameter, masters not counted."""
    return 2 if settings.optimizer == "adamw" else int(settings.momentum != 0)
