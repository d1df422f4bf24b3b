"""How the time of a search grows: against layers, and against devices, each with its fitted exponent.

    python -m examples.measured.sweep                            both tables
    python -m examples.measured.sweep --plot growth.svg         and a picture of them (needs placer-planner[plot])
    python -m examples.measured.sweep --layers 2 8 32 --devices 8 64 512

The model is a Llama of the sizes of Llama 3 8B (arXiv:2407.21783, table 3), captured once and deepened. Layers are
varied on `DEVICES` devices, devices under `LAYERS` layers. Seconds are the processors', of the search and the judging
of its plan; capture is apart. The exponent is the slope of the least squares line through the logarithms:
seconds ~ size ** exponent.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import device, nn

from placer import api, tracer
from placer.cluster.cluster import Cluster
from placer.errors import require_extra
from placer.graph import Graph
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.search.problem import Problem
from placer.tracer.deepen import deepened

LAYERS, DEVICES = 32, 1024
PER_NODE = 8
ROWS, LENGTH = 2048, 4096
CAPTURED = 2
EVERY_LAYERS = tuple(2**k for k in range(1, 8))
EVERY_DEVICES = tuple(2**k for k in range(3, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Seconds of a search for each size of `what`."""

    what: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """The slope of log(seconds) against log(size); 0 for a single size."""
        return fitted_exponent(self.sizes, self.seconds)

    def __str__(self) -> str:
        lines = [f"{size:8d} {self.what:8s} {seconds:8.2f} s" for size, seconds in self._points]
        return "\n".join([*lines, f"search seconds ~ {self.what} ** {self.exponent:.2f}"])

    @property
    def _points(self) -> list[tuple[int, float]]:
        return list(zip(self.sizes, self.seconds, strict=True))


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent e of seconds ~ size ** e by least squares of the logarithms; 0 where all sizes are one."""
    x, y = np.log(sizes), np.log(seconds)
    x = x - x.mean()
    return float(x @ (y - y.mean()) / (x @ x)) if (x @ x) > 0 else 0.0


def grown(what: str, sizes: Sequence[int], problem: Callable[[int], Problem]) -> Growth:
    """The growth of the search over problems of these sizes, each solved from nothing."""
    return Growth(what=what, sizes=tuple(sizes), seconds=tuple(_search_seconds(problem(size)) for size in sizes))


def _search_seconds(problem: Problem) -> float:
    began = _busy()
    plan = api.solve(problem)
    seconds = _busy() - began
    layers, size = len(problem.graph.blocks), problem.cluster.size
    print(f"  {layers} blocks on {size} devices: {seconds:.2f} s, gap {plan.gap or 0:.1%}", file=sys.stderr, flush=True)
    return seconds


def _busy() -> float:
    """Seconds of the processors so far, those of processes that ended among them."""
    return sum(os.times()[:4])


def captured() -> Graph:
    """A Llama with the sizes of Llama 3 8B and as few layers as show how they repeat."""
    return tracer.capture(_model(), batch={"input_ids": (ROWS, LENGTH), "labels": (ROWS, LENGTH)})


def _model() -> nn.Module:
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    with device("meta"):
        config = LlamaConfig(
            **sizes, num_hidden_layers=CAPTURED, vocab_size=128256, max_position_embeddings=LENGTH, use_cache=False
        )
        made: nn.Module = AutoModelForCausalLM.from_config(config)
        return made


def problem_of(graph: Graph, layers: int, devices: int) -> Problem:
    """To train the model with so many layers on so many A100s."""
    return Problem(
        graph=deepened(graph, layers),
        cluster=Cluster.load(f"a100-80gb-sxm4x{PER_NODE}*{devices // PER_NODE}"),
        settings=RunSettings(precision="bfloat16"),
        model=ModelRef(kind="module", reference="Llama", fingerprint=""),
        rows=graph.rows,
    )


def draw(growths: Sequence[Growth], path: Path) -> None:
    """Write a picture of the growths, both axes logarithmic. Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(growths), 4), layout="constrained")
    for axes, growth in zip(figure.subplots(1, len(growths), squeeze=False)[0], growths, strict=True):
        axes.loglog(growth.sizes, growth.seconds, "o-", base=2)
        axes.set_xlabel(growth.what)
        axes.set_ylabel("seconds of search (processor time)")
        axes.set_title(f"seconds ~ {growth.what} ** {growth.exponent:.2f}")
    figure.savefig(path)


def main(argv: list[str] | None = None) -> int:
    """Print both tables; draw them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="*", type=int, default=EVERY_LAYERS)
    parser.add_argument("--devices", nargs="*", type=int, default=EVERY_DEVICES)
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    options = parser.parse_args(argv)
    graph, growths = captured(), []
    if options.layers:
        growths.append(grown("layers", options.layers, lambda layers: problem_of(graph, layers, DEVICES)))
    if options.devices:
        growths.append(grown("devices", options.devices, lambda devices: problem_of(graph, LAYERS, devices)))
    for growth in growths:
        print(growth, flush=True)
    if options.plot:
        draw(growths, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
