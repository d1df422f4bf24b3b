"""What a device's ops reach in a model, forward while autograd records and backward, by the op's name.

On a processor the arithmetic of a softmax or a pooling takes several times what moving its bytes does, and a
convolution reaches half of what a product as large does. Each op runs on several tensors in turn and their results are
kept until backward, as in a model: little is where the last call left it. On a GPU norms and losses read more often
than once, and tensors are larger than its caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from placer.cluster.calibrate.result import OpTime
from placer.cluster.calibrate.timings import HURRY, Together

Shape = tuple[int, ...]

# Activations of 1 MiB, the logits of a small vocabulary, and the planes of an early convolution; as many of them in
# turn as are so many bytes together.
ACTIVATION, LOGITS, PLANES = (1024, 256), (512, 4096), (4, 64, 32, 32)
IN_TURN, LEAST = 8 << 20, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp:
    """An op on tensors of `shapes` and, where it has `labels`, on as many numbers of classes.

    forward, backward: the bytes that the graph counts (`Op.read_bytes` and `written_bytes`), in bytes of the first
    tensor. flops: of a product's forward. wide: those beside the first are of float32 whatever it is.
    """

    name: str
    run: Callable[..., torch.Tensor]
    shapes: tuple[Shape, ...] = (ACTIVATION,)
    forward: float = 2.0
    backward: float = 3.0
    labels: int = 0
    flops: float = 0.0
    dtype: torch.dtype = torch.float32
    wide: bool = False

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Random ones to run on."""
        types = (self.dtype, *(torch.float32 if self.wide else self.dtype for _ in self.shapes[1:]))
        return tuple(
            torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
            for shape, dtype in zip(self.shapes, types, strict=True)
        )

    @property
    def moved(self) -> tuple[float, float]:
        """Bytes of a forward and of a backward."""
        size = float(self.dtype.itemsize * math.prod(self.shapes[0]))
        return self.forward * size, self.backward * size


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (x.shape[-1],))


def _dropout(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x, 0.1)


def _batch_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, None, None, training=True)


def _max_pool2d(x: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(x, 3, 2, 1)


def _cubed(x: torch.Tensor) -> torch.Tensor:
    return torch.pow(x, 3.0)


def _weighted_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight)


def _weighted_batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """With running statistics, where cuDNN has a kernel, and weights of float32 as it wants them."""
    mean, variance = torch.zeros_like(weight.detach()), torch.ones_like(weight.detach())
    return functional.batch_norm(x, mean, variance, weight, bias, training=True)


def _averaged(x: torch.Tensor) -> torch.Tensor:
    return functional.adaptive_avg_pool2d(x, 1)


def _turned(x: torch.Tensor) -> torch.Tensor:
    """As heads of 64 are laid beside each other."""
    return x.view(x.shape[0], -1, 64).transpose(0, 1).contiguous()


def _convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, weight, padding=1)


def _convolution(channels: int, edge: int) -> TimedOp:
    """A convolution of ResNet's, of 4 images: 3 x 3, as many channels in as out."""
    images, weight = (4, channels, edge, edge), (channels, channels, 3, 3)
    beside = math.prod(weight) / math.prod(images)
    return TimedOp(
        name="conv2d",
        run=_convolved,
        shapes=(images, weight),
        forward=2 + beside,
        backward=3 + 2 * beside,
        flops=2.0 * 4 * edge**2 * channels**2 * 9,
    )


OPS = (
    TimedOp(
        name="linear", run=functional.linear, shapes=((512, 512), (1024, 512)), forward=5.0, backward=8.0,
        flops=2.0 * 512 * 512 * 1024,
    ),
    _convolution(64, 24),
    _convolution(256, 6),
    TimedOp(name="mul", run=torch.mul, shapes=(ACTIVATION, ACTIVATION), forward=3.0, backward=5.0),
    TimedOp(name="gelu", run=functional.gelu),
    TimedOp(name="silu", run=functional.silu),
    TimedOp(name="relu", run=functional.relu),
    TimedOp(name="tanh", run=torch.tanh),
    TimedOp(name="dropout", run=_dropout, forward=2.0, backward=2.25),
    TimedOp(name="softmax", run=_softmax),
    TimedOp(name="layer_norm", run=_layer_norm),
    TimedOp(name="batch_norm", run=_batch_norm, shapes=(PLANES,)),
    TimedOp(name="max_pool2d", run=_max_pool2d, shapes=(PLANES,), forward=1.25, backward=2.75),
    TimedOp(
        name="cross_entropy_loss", run=functional.cross_entropy, shapes=(LOGITS,), forward=1.0, backward=2.0,
        labels=LOGITS[1],
    ),
)  # fmt: skip


# On a GPU, of tensors that its caches do not hold, norms with weights; bytes as the graph counts them.
ROWS, LOGITS_OF_MANY, WIDE_PLANES, LAST_PLANES = (8192, 2048), (4096, 32000), (64, 256, 56, 56), (64, 2048, 7, 7)
ON_GPU = (
    TimedOp(name="mul", run=torch.mul, shapes=(ROWS, ROWS), forward=3.0, backward=5.0),
    TimedOp(name="gelu", run=functional.gelu, shapes=(ROWS,)),
    TimedOp(name="silu", run=functional.silu, shapes=(ROWS,)),
    TimedOp(name="relu", run=functional.relu, shapes=(ROWS,)),
    TimedOp(name="tanh", run=torch.tanh, shapes=(ROWS,)),
    TimedOp(name="pow", run=_cubed, shapes=(ROWS,)),
    TimedOp(name="dropout", run=_dropout, shapes=(ROWS,), forward=2.0, backward=2.25),
    TimedOp(name="softmax", run=_softmax, shapes=(ROWS,)),
    TimedOp(name="contiguous", run=_turned, shapes=(ROWS,), backward=2.0),
    TimedOp(name="layer_norm", run=_weighted_layer_norm, shapes=(ROWS, ROWS[1:], ROWS[1:])),
    TimedOp(name="rms_norm", run=_rms_norm, shapes=(ROWS, ROWS[1:]), backward=4.0),
    TimedOp(
        name="batch_norm", run=_weighted_batch_norm, shapes=(WIDE_PLANES, WIDE_PLANES[1:2], WIDE_PLANES[1:2]),
        wide=True,
    ),
    TimedOp(name="max_pool2d", run=_max_pool2d, shapes=(WIDE_PLANES,), forward=1.25, backward=2.75),
    TimedOp(name="adaptive_avg_pool2d", run=_averaged, shapes=(LAST_PLANES,), forward=1.0, backward=1.0),
    TimedOp(
        name="cross_entropy_loss", run=functional.cross_entropy, shapes=(LOGITS_OF_MANY,), forward=1.0, backward=2.0,
        labels=LOGITS_OF_MANY[1],
    ),
)  # fmt: skip


def op_times(together: Together) -> tuple[OpTime, ...]:
    """Those of all ops, on a GPU also in bfloat16, whose names end in `/16`; none where time is up."""
    if together.later_than(HURRY):
        return ()
    together.progress("ops of a model")
    if not together.on_gpu:
        return tuple(_timed(together, op, op.name) for op in OPS)
    short = [replace(op, dtype=torch.bfloat16) for op in ON_GPU]
    return tuple(_timed(together, op, op.name + "/16" * (op.dtype == torch.bfloat16)) for op in (*ON_GPU, *short))


def _timed(together: Together, op: TimedOp, name: str) -> OpTime:
    return OpTime(name=name, flops=op.flops, moved=op.moved, seconds=_seconds(together, op))


def _seconds(together: Together, op: TimedOp) -> tuple[float, float]:
    """Seconds of one forward and of one backward of `op`."""
    count = max(LEAST, IN_TURN // (4 * math.prod(op.shapes[0]))) if not together.on_gpu else 1
    given = [op.tensors(together.device) for _ in range(count)]
    rows = op.shapes[0][:1]
    labels = tuple(torch.randint(op.labels, rows, device=together.device) for _ in range(op.labels > 0))

    def ahead() -> list[torch.Tensor]:
        return [op.run(*tensors, *labels) for tensors in given]

    slopes = [torch.ones_like(result) for result in ahead()]
    wanted = [tensor for tensors in given for tensor in tensors]
    forward = together.seconds(ahead)
    both = together.seconds(lambda: torch.autograd.grad(ahead(), wanted, slopes))
    return forward / count, max(both - forward, forward / 10) / count
