"""Ops of torch on a GPU one by one: seconds of a forward and a backward as predicted beside those measured.

    python -m examples.measured.calibrated.ops -o mine.jsonl                    measured on the GPU at hand
    python -m examples.measured.calibrated.ops --chip h200 --from FILE.jsonl    beside what was measured before

Each op is captured in a model of nothing else and priced as in a plan; what is measured is the same call on random
numbers, many of them recorded as one CUDA graph, so that the host's launches do not count. Of each kind and type the
geometric mean of predicted over measured is told, and the mean error. `results/h200-ops.jsonl` is one H200's (torch
2.11, 26 November 2026), on which the shares of that chip in the catalogue were fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean

import torch
from torch import nn
from torch.nn import functional

from placer import tracer
from placer.cluster.calibrate.device_calls import recorded
from placer.cluster.catalogue import catalogue_device
from placer.cluster.cluster import Device
from placer.costs.compute.roofline import op_seconds
from placer.costs.precision import Numerics, op_name
from placer.plans.settings import RunSettings

Shape = tuple[int, ...]
TYPES = {
    "float32": RunSettings(precision="float32"),
    "tfloat32": RunSettings(precision="float32", tf32=True),
    "bfloat16": RunSettings(precision="bfloat16"),
}
REPEATED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of an op of some kind and shape in a type; no backward where none was measured."""

    kind: str
    shape: Shape
    dtype: str
    forward_seconds: float
    backward_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An op by its name in a graph: `run` of tensors whose shapes `tensors` makes of a case's; given: whether the first
    is the model's input itself, which has no gradient. wide: all but the first are of float32."""

    op: str
    run: Callable[..., torch.Tensor]
    tensors: Callable[[Shape], tuple[Shape, ...]] = lambda shape: (shape,)
    given: bool = False
    wide: bool = False


def _convolved(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
    edge, groups = weight.shape[-1], x.shape[1] // weight.shape[1]
    return functional.conv2d(x, weight, None, stride, edge // 2 if stride < edge else 0, 1, groups)


def _conv_tensors(shape: Shape) -> tuple[Shape, ...]:
    """Of images, channels in, edge, channels out, edge of the window, stride, groups."""
    images, given, edge, made, window, _, groups = shape
    return (images, given, edge, edge), (made, given // groups, window, window)


def _attended(x: torch.Tensor, causal: bool) -> torch.Tensor:
    q, k, v = x.unbind(1)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def kind_of(name: str, shape: Shape) -> Kind:
    """What a case of this name and shape runs."""
    if name == "conv2d":
        stride = shape[5]
        return Kind(
            op=name, run=lambda x, w: _convolved(x, w, stride), tensors=_conv_tensors, given=shape[1] == IMAGE_CHANNELS
        )
    if name == "attention":  # rows, heads, positions, width, causal
        return Kind(
            op="scaled_dot_product_attention",
            run=lambda x: _attended(x, bool(shape[4])),
            tensors=lambda of: ((of[0], 3, *of[1:4]),),
        )
    return KINDS[name]


IMAGE_CHANNELS = 3
KINDS = {
    "linear": Kind(op="linear", run=functional.linear, tensors=lambda of: ((of[0], of[2]), (of[1], of[2]))),
    "layer_norm": Kind(
        op="layer_norm",
        run=lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
        tensors=lambda of: (of, of[1:], of[1:]),
    ),
    "rms_norm": Kind(
        op="rms_norm", run=lambda x, w: functional.rms_norm(x, w.shape, w), tensors=lambda of: (of, of[1:])
    ),
    "batch_norm": Kind(
        op="batch_norm",
        run=lambda x, w, b: functional.batch_norm(x, w.detach() * 0, w.detach() * 0 + 1, w, b, training=True),
        tensors=lambda of: (of, of[1:2], of[1:2]),
        wide=True,
    ),
    "gelu": Kind(op="gelu", run=functional.gelu),
    "silu": Kind(op="silu", run=functional.silu),
    "relu": Kind(op="relu", run=functional.relu),
    "tanh": Kind(op="tanh", run=torch.tanh),
    "pow": Kind(op="pow", run=lambda x: torch.pow(x, 3.0)),
    "softmax": Kind(op="softmax", run=lambda x: torch.softmax(x, -1)),
    "dropout": Kind(op="dropout", run=lambda x: functional.dropout(x, 0.1)),
    "max_pool2d": Kind(op="max_pool2d", run=lambda x: functional.max_pool2d(x, 3, 2, 1)),
    "adaptive_avg_pool2d": Kind(op="adaptive_avg_pool2d", run=lambda x: functional.adaptive_avg_pool2d(x, 1)),
    "cross_entropy": Kind(
        op="cross_entropy_loss",
        run=lambda x: functional.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)),
    ),
}


class OneOp(nn.Module):
    """A model of one op, whose input has a gradient where the op's has in other models."""

    def __init__(self, kind: Kind, shapes: tuple[Shape, ...]) -> None:
        super().__init__()
        self.kind = kind
        self.scale = nn.Parameter(torch.empty(1, device="meta"))
        self.more = nn.ParameterList([nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes[1:]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of what it gives."""
        return self.kind.run(x if self.kind.given else x * self.scale, *self.more).float().sum()


def predicted(case: Timed, device: Device) -> tuple[float, float]:
    """Seconds of a forward and of a backward."""
    kind, settings = kind_of(case.kind, case.shape), TYPES[case.dtype]
    shapes = kind.tensors(case.shape)
    graph = tracer.capture(OneOp(kind, shapes), batch={"x": torch.empty(shapes[0], device="meta")})
    numerics, found = Numerics.of(graph, settings), []
    for block in (graph.prologue, *graph.blocks):
        of = graph.classes[block.kind]
        found += [(op, own) for op, own in zip(of.ops, numerics.ops(of), strict=True) if op_name(op) == kind.op]
    seconds = [op_seconds(op, own, device, settings, graph.rows) for op, own in found]
    return sum(one.forward for one in seconds), sum(one.backward for one in seconds)


def measured(case: Timed) -> Timed:
    """The same case, timed on the GPU at hand."""
    kind, dtype = kind_of(case.kind, case.shape), torch.bfloat16 if case.dtype == "bfloat16" else torch.float32
    torch.set_float32_matmul_precision("high" if case.dtype == "tfloat32" else "highest")
    x, *more = kind.tensors(case.shape)
    given = [torch.randn(x, device="cuda").to(dtype).requires_grad_(not kind.given)]
    given += [
        torch.randn(one, device="cuda").to(torch.float32 if kind.wide else dtype).requires_grad_() for one in more
    ]
    wanted = [one for one in given if one.requires_grad]
    slope = torch.ones_like(kind.run(*given))
    with torch.no_grad():
        forward = _seconds(lambda: kind.run(*given))
    both = _seconds(lambda: torch.autograd.grad(kind.run(*given), wanted, slope))
    return Timed(
        kind=case.kind, shape=case.shape, dtype=case.dtype, forward_seconds=forward, backward_seconds=both - forward
    )


def _seconds(action: Callable[[], object]) -> float:
    """Of a call, the median of some recordings."""
    calls = recorded(action)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    found = []
    for _ in range(REPEATED):
        begin.record()
        calls.run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / calls.count)
    return sorted(found)[REPEATED // 2]


def read(path: Path) -> tuple[Timed, ...]:
    """The cases of a file."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return tuple(Timed(**{**entry, "shape": tuple(entry["shape"])}) for entry in entries)


def ratios(cases: Sequence[Timed], device: Device) -> dict[tuple[str, str], list[float]]:
    """Predicted over measured seconds by kind and type, forward and backward apart."""
    found: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        forward, backward = predicted(case, device)
        found.setdefault((case.kind, f"{case.dtype} forward"), []).append(forward / case.forward_seconds)
        if case.backward_seconds:
            found.setdefault((case.kind, f"{case.dtype} backward"), []).append(backward / case.backward_seconds)
    return found


def table(found: dict[tuple[str, str], list[float]]) -> Iterator[str]:
    """A line per kind, type and pass, and one of all."""
    for (kind, of), own in found.items():
        yield f"{kind:20} {of:18} {len(own):3}  {middle(own):5.2f}  {_error(own):6.1%}"
    every = [ratio for own in found.values() for ratio in own]
    yield f"{len(every)} passes: geometric mean {middle(every):.2f}, mean absolute error {_error(every):.1%}"


def middle(own: Sequence[float]) -> float:
    """The geometric mean of ratios."""
    return exp(fmean(map(log, own)))


def _error(own: Sequence[float]) -> float:
    return fmean(abs(ratio - 1) for ratio in own)


RESULTS = Path(__file__).parent.parent / "results" / "h200-ops.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure where a GPU is, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, default=RESULTS, help="cases, and their seconds")
    parser.add_argument("--chip", default="h200", help="of the catalogue, for which is predicted")
    parser.add_argument("-o", "--output", type=Path, help="measure them on this GPU, and write its seconds here")
    options = parser.parse_args(argv)
    cases = read(options.source)
    if options.output is not None:
        if not torch.cuda.is_available():
            print(f"{parser.prog}: -o measures a GPU, and torch sees none here", file=sys.stderr)
            return 2
        cases = tuple(map(measured, cases))
        options.output.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases))
    print("\n".join(table(ratios(cases, catalogue_device(options.chip)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
