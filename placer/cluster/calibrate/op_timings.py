"""What a processor's ops reach in a model, forward while autograd records and backward, by the op's name.

One rate of memory stands for all of a GPU's; on a processor the arithmetic of a softmax or a pooling takes several
times what moving its bytes does, and a convolution reaches half of what a product as large does. Each op runs on
several tensors in turn and their results are kept until backward, as in a model: little is where the last call left it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
    tensor. flops: of a product's forward.
    """

    name: str
    run: Callable[..., torch.Tensor]
    shapes: tuple[Shape, ...] = (ACTIVATION,)
    forward: float = 2.0
    backward: float = 3.0
    labels: int = 0
    flops: float = 0.0

    @property
    def moved(self) -> tuple[float, float]:
        """Bytes of a forward and of a backward."""
        size = 4.0 * math.prod(self.shapes[0])
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


def op_times(together: Together) -> tuple[OpTime, ...]:
    """Those of all ops, or of none where nothing but what is needed is timed, and on a GPU."""
    if together.device.type == "cuda" or together.later_than(HURRY):
        return ()
    together.progress("ops of a model")
    return tuple(OpTime(name=op.name, flops=op.flops, moved=op.moved, seconds=_seconds(together, op)) for op in OPS)


def _seconds(together: Together, op: TimedOp) -> tuple[float, float]:
    """Seconds of one forward and of one backward of `op`."""
    count = max(LEAST, IN_TURN // (4 * math.prod(op.shapes[0])))
    given = [tuple(torch.randn(shape, requires_grad=True) for shape in op.shapes) for _ in range(count)]
    labels = tuple(torch.randint(op.labels, op.shapes[0][:1]) for _ in range(op.labels > 0))

    def ahead() -> list[torch.Tensor]:
        return [op.run(*tensors, *labels) for tensors in given]

    slopes = [torch.ones_like(result) for result in ahead()]
    wanted = [tensor for tensors in given for tensor in tensors]
    forward = together.seconds(ahead)
    both = together.seconds(lambda: torch.autograd.grad(ahead(), wanted, slopes))
    return forward / count, max(both - forward, forward / 10) / count
