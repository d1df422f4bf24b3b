"""How fast plans run beside what a person would write with torch, in one run and taking turns.

data       DistributedDataParallel in a loop, and gradient buckets reduced by hooks
pipeline   torch.distributed.pipelining
tensor     Megatron's column and row products as autograd functions, and DTensor's parallelize_module

parallel: ways to train data-parallel side by side, of torch, DeepSpeed, Horovod, TensorFlow and placer
placements: any plans of one model, by torchrun
"""

from placer.runtime.bench.contest import KINDS, Compared, Times, compared
from placer.runtime.bench.model import Size
from placer.runtime.bench.placements import measured_in_turns

__all__ = ["KINDS", "Compared", "Size", "Times", "compared", "measured_in_turns"]
