"""Calls of an op as the GPU sees them, one right after another, without what the host takes to launch each.

A host issues an op in some ten microseconds, and a small kernel takes one: timed call by call the host would be
measured, once as the kernel and once more as the seconds of issuing it. Many calls are recorded as one CUDA graph,
which the host launches once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Of a recording, and the calls of one: enough that launching it does not count.
RECORDED_SECONDS, MOST_CALLS = 0.02, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """`run` makes so many calls."""

    run: Callable[[], object]
    count: int = 1


def recorded(action: Callable[[], object]) -> Calls:
    """Calls of `action` as one graph; where it cannot be recorded (it waits for the device) the action itself."""
    count = max(1, min(MOST_CALLS, int(RECORDED_SECONDS / _warm_seconds(action))))
    for _ in range(2):  # what a library makes ready in its first backward cannot be recorded
        graph = torch.cuda.CUDAGraph()
        try:
            # The threads of NCCL ask for their events meanwhile, which is no part of the recording.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(count):
                    action()
        except RuntimeError:
            torch.cuda.synchronize()
        else:
            return Calls(run=graph.replay, count=count)
    return Calls(run=action)


def _warm_seconds(action: Callable[[], object]) -> float:
    """Seconds of a call after the first ones, in which libraries choose kernels; on a stream of its own, as recording
    wants it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        action()
        action()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def host_seconds(length: int = 300) -> float:
    """Seconds the host takes to issue an op of inference: of a transformer's layer op by op, views included, on tensors
    so small that the GPU is done before the next one comes; the median of some rounds."""
    from torch.nn import functional

    device = torch.device("cuda", torch.cuda.current_device())
    x, weight, bias = (torch.randn(size, device=device) for size in ((4, 64), (64, 64), (64,)))
    layer: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda y: functional.layer_norm(y, (64,), bias, bias),
        lambda y: functional.linear(y, weight, bias),
        lambda y: y.view(2, 2, 64),
        lambda y: y.transpose(0, 1),
        lambda y: y + y,
        lambda y: functional.gelu(y.reshape(4, 64)),
    )
    ops = len(layer) + 1  # the reshape is one, too
    rounds = []
    with torch.no_grad():
        for _ in range(5):
            torch.cuda.synchronize()
            begun, y = time.perf_counter(), x
            for _ in range(length):
                for op in layer:
                    y = op(y)
            rounds.append((time.perf_counter() - begun) / (length * ops))
    return sorted(rounds)[len(rounds) // 2]
