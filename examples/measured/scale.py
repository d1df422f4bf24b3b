"""Planning at scale, from a cold start: capture, search, proof.

    python -m examples.measured.scale                 all cases
    python -m examples.measured.scale gpt3 resnet     some of them
    python -m examples.measured.scale gpt3 --save gpt3.json   the plan of the last one as a file, for a dry run

Prints for each case the seconds it took, peak resident memory, the plan and its proven gap, or what binds.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import device, nn

import placer
from placer.io.processes import collect_seldom
from placer.plans.settings import RunSettings

PIXELS = 32768
IMAGES = {"pixel_values": (8, 3, PIXELS, PIXELS), "labels": (8,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, the machines it is planned for, and its global batch (rows and length, or image size)."""

    build: Callable[[], nn.Module]
    cluster: str
    batch: dict[str, tuple[int, ...]]
    pins: tuple[str, ...] = ()


# Each model imports what it needs of transformers, so that a case takes no longer for the others.


def gpt3_175b() -> nn.Module:
    """GPT-3 175B (arXiv:2005.14165, table 2.1)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": 2048, "vocab_size": 51200}
    with device("meta"):
        return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))


def llama3_405b() -> nn.Module:
    """Llama 3 405B (arXiv:2407.21783, table 3)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128}
    more = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
    with device("meta"):
        return LlamaForCausalLM(LlamaConfig(**sizes, **more, use_cache=False))


def deepseek_v3() -> nn.Module:
    """DeepSeek-V3 671B (arXiv:2412.19437, section 4.2), as its configuration in transformers has it."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    with device("meta"):
        return DeepseekV3ForCausalLM(DeepseekV3Config(use_cache=False))


def resnet50() -> nn.Module:
    """ResNet-50 on very large images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    with device("meta"):
        return ResNetForImageClassification(ResNetConfig(num_labels=1000))


def _tokens(rows: int, length: int) -> dict[str, tuple[int, ...]]:
    return {"input_ids": (rows, length), "labels": (rows, length)}


CASES = {
    "gpt3": Case(build=gpt3_175b, cluster="a100-80gb-sxm4x8*128", batch=_tokens(1536, 2048)),
    "llama": Case(build=llama3_405b, cluster="h100x8*2048", batch=_tokens(2048, 8192)),
    "deepseek": Case(build=deepseek_v3, cluster="h800x8*256", batch=_tokens(15360, 4096)),
    "resnet": Case(build=resnet50, cluster="a100-80gb-sxm4x8*8", batch=IMAGES),
    # What no plan can do: images of this size with neither height nor width cut.
    "uncut": Case(build=resnet50, cluster="a100-80gb-sxm4x8*8", batch=IMAGES, pins=("height=1", "width=1")),
}


def main(argv: list[str] | None = None) -> int:
    """Plan the cases, each in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"cases: {', '.join(CASES)}; one a process gives its own memory")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--save", default="", help="write the plan of the last case here")
    options = parser.parse_args(argv)
    collect_seldom()
    for name in options.names or CASES:
        _run(name, CASES[name], options.strategy, options.save)
    return 0


def _run(name: str, case: Case, strategy: str, save: str) -> None:
    began, settings = time.perf_counter(), RunSettings(precision="bfloat16", batch_norm="microbatch")
    # A plan that another process is to run must name its model.
    model = f"examples.measured.scale:{case.build.__name__}" if save else case.build()
    try:
        plan = placer.plan(model, case.cluster, batch=case.batch, settings=settings, strategy=strategy, pins=case.pins)
    except placer.InfeasibleError as found:
        print(f"{name}: {_spent(began)}; infeasible: {found}", flush=True)
        return
    spent = _spent(began)
    stage = plan.stages[0]
    ledger = plan.ledger
    assert ledger is not None
    gap = "none" if plan.gap is None else f"{plan.gap:.1%}"
    again = sum(each.recompute is not False for each in plan.stages)
    parts = (
        f"{name}: {spent}",
        f"pipeline {plan.positions} x data {stage.replicas} x split {stage.degree}",
        f"{len(plan.microbatches)} microbatches, {plan.schedule}, sharding {stage.sharding}",
        f"{again} of {len(plan.stages)} stages recompute",
        f"step {ledger.step_seconds:.3f} s, MFU {ledger.mfu:.0%}, gap {gap}",
    )
    print("; ".join(parts), flush=True)
    if save:
        plan.save(save)


def _spent(began: float) -> str:
    """Seconds since `began`, those of the processors since the process began, and the most memory it had, and one of
    those it started beside it."""
    own, beside = (
        resource.getrusage(who).ru_maxrss / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    seconds, busy = time.perf_counter() - began, sum(os.times()[:4])
    return f"{seconds:.1f} s ({busy:.1f} s of processors with imports), peak {own:.2f} GiB, beside it {beside:.2f}"


if __name__ == "__main__":
    sys.exit(main())
