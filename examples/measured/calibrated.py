"""Plans on this machine after `placer calibrate`: seconds of a step as predicted beside those measured.

    python -m examples.measured.calibrated                    every model under every layout, some ten minutes
    python -m examples.measured.calibrated --only "gpt "      cases whose name holds a word
    python -m examples.measured.calibrated --rounds 5         so many turns: what is shown is their median

Four models of transformers, each on two processes (replicas, sharded replicas, a pipeline, cut ops) and on four
(replicas, two pipelines). The machine is measured once as two devices and once as four, then every plan runs under
torchrun as `placer execute` runs it, in turns: a slow minute meets them all. `noise` is how far the turns of a plan lie
apart. A layout that the model does not have is named.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, median

import transformers
from torch import nn

from placer import api
from placer.cluster.calibrate import calibrate
from placer.cluster.cluster import Cluster
from placer.errors import InfeasibleError
from placer.plans.plan import Plan
from placer.runtime.distributed.launch import launch
from placer.runtime.training.run_report import RunReport

STEPS, WARM_UP = 12, 3
LONGEST_SECONDS = 300.0
THIS = "examples.measured.calibrated"


def gpt() -> nn.Module:
    """GPT-2 of half its depth and width."""
    sizes = {"n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 128, "vocab_size": 8192}
    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, use_cache=False))


def vit() -> nn.Module:
    """ViT of the small size (arXiv:2012.12877, table 1) and half its depth, on 96 x 96 pixels."""
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "num_hidden_layers": 6}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=96, num_labels=100))


def resnet() -> nn.Module:
    """ResNet-18 (arXiv:1512.03385, table 1)."""
    sizes = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "num_labels": 100}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


def llama() -> nn.Module:
    """Llama of four layers of width 256, with half as many heads of keys and values."""
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": 4096}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, use_cache=False))


def _tokens(rows: int, length: int) -> dict[str, tuple[int, ...]]:
    return {"input_ids": (rows, length), "labels": (rows, length)}


def _images(rows: int, pixels: int) -> dict[str, tuple[int, ...]]:
    return {"pixel_values": (rows, 3, pixels, pixels), "labels": (rows,)}


MODELS = {"gpt": _tokens(8, 128), "vit": _images(16, 96), "resnet": _images(8, 96), "llama": _tokens(8, 128)}
LAYOUTS = (
    (2, ("data=2", "shard=none")),
    (2, ("data=2", "shard=parameters")),
    (2, ("pipeline=2",)),
    (2, ("tensor=2",)),
    (4, ("data=4", "shard=none")),
    (4, ("pipeline=2", "data=2", "shard=none")),
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A model under pins on so many processes; the seconds of a step of each turn so far."""

    model: str
    processes: int
    pins: tuple[str, ...]
    plan: Plan
    turns: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.model} {self.processes} {' '.join(self.pins)}"

    @property
    def predicted(self) -> float:
        """Seconds of a step."""
        assert self.plan.ledger is not None
        return self.plan.ledger.step_seconds

    @property
    def measured(self) -> float:
        """The median turn."""
        return median(self.turns)

    @property
    def off(self) -> float:
        """Of what was measured, how much is predicted too little (below zero) or too much."""
        return self.predicted / self.measured - 1

    def run(self) -> None:
        """One more turn: the median step after the first ones. Raises ExecutionError where a rank fails."""
        with tempfile.TemporaryDirectory(prefix="placer-calibrated-") as folder:
            path, report = Path(folder) / "plan.json", Path(folder) / "report.json"
            self.plan.save(path)
            arguments = ("--steps", str(STEPS), "--report", str(report))
            launch(str(path), arguments, self.processes, LONGEST_SECONDS)
            self.turns.append(median(RunReport.load(report).step_seconds[WARM_UP:]))

    def __str__(self) -> str:
        noise = max(self.turns) / min(self.turns) - 1
        return (
            f"{self.name:44s}{1e3 * self.predicted:10.1f} ms{1e3 * self.measured:10.1f} ms{self.off:8.0%}{noise:8.0%}"
        )


@cache
def machine(processes: int) -> Cluster:
    """This machine as so many devices, measured now."""
    cluster = calibrate(processes, progress=lambda line: print(f"  {line}", file=sys.stderr))
    print("\n".join(cluster.notes))
    return cluster


def layouts(words: Sequence[str]) -> Iterator[Layout]:
    """The cases whose name holds one of the words (all where there are none), planned."""
    for model, batch in MODELS.items():
        for processes, pins in LAYOUTS:
            name = f"{model} {processes} {' '.join(pins)}"
            if words and not any(word in name for word in words):
                continue
            try:
                plan = api.plan(f"{THIS}:{model}", machine(processes), batch=batch, pins=pins)
            except InfeasibleError as error:
                print(f"{name}: {str(error).splitlines()[0]}")
                continue
            yield Layout(model=model, processes=processes, pins=pins, plan=plan)


def _summary(found: Sequence[Layout]) -> Iterator[str]:
    yield f"{len(found)} plans: mean absolute error {fmean(abs(one.off) for one in found):.1%}"
    for model in dict.fromkeys(one.model for one in found):
        own = [one for one in found if one.model == model]
        chosen, fastest = min(own, key=lambda one: one.predicted), min(own, key=lambda one: one.measured)
        behind = chosen.measured / fastest.measured - 1
        yield f"{model}: {chosen.name} predicted fastest, {behind:.1%} slower than the fastest measured, {fastest.name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the machine, plan, run in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this; repeat for more")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every plan")
    options = parser.parse_args(argv)
    found = list(layouts(options.only))
    for _ in range(options.rounds):
        for one in found:
            one.run()
    print(f"{'plan':44s}{'predicted':>13s}{'measured':>13s}{'off':>8s}{'noise':>8s}")
    for line in (*map(str, found), *_summary(found)):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
