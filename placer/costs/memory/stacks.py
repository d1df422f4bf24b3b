"""What the stacks of other projects hold beside weights and what ops keep: gradients, their copies, those of the loss.

torch               gradients in the weights' type, which come with the first backward and go with the update; that
                    makes float32 ones of masters, each in place of one that goes. Those of 16 bits that microbatches
                    add to are float32 ones; under DDP those of the last backward are beside them. This runtime does so.
fsdp                the same, but with `parameters` each microbatch's gradients are scattered (torch.distributed.fsdp
                    without `no_sync`, as torchtitan and Composer run it); what adds up whole does so in float32
                    (_fully_shard/_fsdp_param.py, `to_accumulated_grad_if_needed`; torchtitan: `mixed_precision_reduce`)
megatron            one buffer of all gradients for as long as the run, which microbatches add to and collectives work
megatron-core       in: float32 of bfloat16 weights (Megatron-LM, megatron/training/arguments.py: "if args.bf16 ...
                    accumulate_allreduce_grads_in_fp32 = True"; distributed/param_and_grad_buffer.py: `grad_data`), the
                    weights' type of float16 ones, of which the update makes float32 copies
                    (optimizer/optimizer.py, `main_param.grad = model_param.main_grad.float()`)
nemo                megatron-core as the recipes for speed of NeMo and Megatron-Bridge run it: the buffer in 16 bits
                    (nemo/collections/llm/recipes/*: `plugins.grad_reduce_in_fp32 = False`; Megatron-Bridge,
                    scripts/performance: `cfg.ddp.grad_reduce_in_fp32 = False`)
megatron-deepspeed  of bfloat16 weights float32 ones and a float32 buffer of all gradients, neither divided, and those
                    in 16 bits come and go (DeepSpeed's runtime/bf16_optimizer.py as it was in 2022:
                    `fp32_groups_flat`, `fp32_groups_gradients_flat`, `clear_lp_grads`); of float16 ones they come and
                    go, and the update has those of its share once flat and once in float32 (runtime/zero/
                    stage_1_and_2.py, `step`: `self.flatten(self.averaged_gradients[i]).to(...)`). Reductions copy a
                    bucket.

What is divided over replicas is so in this runtime over those of a plan. Others divide it over the devices of a
replica, too, that hold the same, since they share a row's tokens or lie apart for experts (torchtitan,
distributed/parallel_dims.py: `dp_shard_cp`; Megatron-LM, distributed/distributed_data_parallel.py: `dp_cp_group`).

The loss of Megatron's family makes its gradient where its softmax lies, in float32 (megatron/core/tensor_parallel/
cross_entropy.py, `grad_input = softmax`): beside it there is that of the logits in 16 bits alone, where torch's has two
more in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.costs.precision import Numerics
from placer.plans.settings import RunSettings

# Of float32, by definition.
MASTER_BYTES = 4
# Elements of a bucket that DeepSpeed reduces at a time (runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE; of ZeRO's first
# stage the default of reduce_bucket_size, runtime/zero/config.py, is the same).
DEEPSPEED_BUCKET = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientHolding:
    """Bytes per element that trains of what a stack holds for gradients.

    each: of gradients that come with the first backward and go with the update; added: where they add up whole, over
    microbatches. standing: of what is there from the first step on. update: of those that a replica updates, made
    beside them. bucket: elements that a reduction copies; None: as this runtime reduces; 0: it works in place.
    whole_masters: of float32 weights that are not divided with the optimizer's state. scatters: of parameters that are
    divided, gradients are so while microbatches add up. spreads: what is divided is so over all devices that hold the
    same.
    """

    each: int
    standing: int = 0
    update: int = 0
    bucket: int | None = None
    whole_masters: int = 0
    scatters: bool = False
    added: int = 0
    spreads: bool = False


def gradient_holding(numerics: Numerics, settings: RunSettings) -> GradientHolding:
    """What the stack of these settings holds of gradients."""
    own, stack = numerics.weight_bytes, settings.stack
    wide, masters = numerics.weights == "bfloat16", MASTER_BYTES * numerics.masters
    if stack == "torch":
        return GradientHolding(each=own, update=max(0, masters - own), added=max(own, masters))
    if stack == "fsdp":
        added = max(own, MASTER_BYTES)
        return GradientHolding(each=own, update=max(0, masters - own), scatters=True, spreads=True, added=added)
    if stack == "megatron-deepspeed" and wide:
        whole = 0 if settings.offload == "optimizer" else masters
        return GradientHolding(each=own, standing=MASTER_BYTES, bucket=DEEPSPEED_BUCKET, whole_masters=whole)
    if stack == "megatron-deepspeed":
        return GradientHolding(each=own, update=masters and masters + own, bucket=DEEPSPEED_BUCKET)
    if wide and stack != "nemo":
        return GradientHolding(each=0, standing=MASTER_BYTES, bucket=0, spreads=True)
    return GradientHolding(each=0, standing=own, update=masters, bucket=0, spreads=True)
