"""Reads the parallelism of Megatron-LM's flags from any file that holds them: a list of arguments, or a shell script.

`NAME=VALUE` lines of a script are put in where `$NAME` or `${NAME}` stands. Flags of model, data and logging are none
of a layout's and are passed over.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise

from placer.errors import UsageError
from placer.plans.plan import Recompute, Sharding
from placer.targets.frameworks.asked_layout import AskedLayout

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(\S*)")
_REPEATED = re.compile(r"(\([^()]*\)|[EtmL])\*(\d+)")
MOST_LAYERS = 4096
COUNTS = (
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
    "expert-model-parallel-size", "micro-batch-size", "global-batch-size", "seq-length", "num-layers",
    "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage", "expert-tensor-parallel-size",
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
)  # fmt: skip
SHARED: Mapping[str, Sharding] = {"no_shard": "none", "optim": "optimizer", "optim_grads": "gradients",
                                  "optim_grads_params": "parameters"}  # fmt: skip


def read_megatron(text: str, where: str) -> AskedLayout:
    """The layout of the flags in `text`. Raises UsageError where a number or the layout string is none."""
    flags = _flags(text, where)
    counts = {name: _count(flags[name], name, where) for name in COUNTS if name in flags}
    pipeline = counts.get("pipeline-model-parallel-size", 1)
    stages = _stages(flags, counts, pipeline, where)
    virtual = len(stages) // pipeline if stages else counts.get("num-virtual-stages-per-pipeline-rank", 1)
    return AskedLayout(
        framework="Megatron-LM", pipeline=pipeline, virtual=virtual,
        tensor=counts.get("tensor-model-parallel-size", 1), context=counts.get("context-parallel-size", 1),
        expert=counts.get("expert-model-parallel-size", 1), rows=counts.get("global-batch-size", 0),
        micro_rows=counts.get("micro-batch-size", 0), length=counts.get("seq-length", 0),
        sharding=_sharding(flags), schedule="interleaved" if virtual > 1 else "1f1b",
        recompute=_recompute(flags),
        precision="bfloat16" if "bf16" in flags else "float16" if "fp16" in flags else None,
        stages=stages, unread=tuple(_unread(flags)),
    )  # fmt: skip


def _flags(text: str, where: str) -> dict[str, str]:
    """Each flag with its value; "" where it has none."""
    known = {
        match[1]: match[2].strip("\"'")
        for match in map(_ASSIGNED.fullmatch, map(str.strip, text.splitlines()))
        if match
    }
    for _ in range(len(known) + 1):  # variables may stand for others
        filled = _VARIABLE.sub(lambda found: known.get(found[1], found[0]), text)
        if filled == text:
            break
        text = filled[: 1 << 20]
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"{where} is no list of flags: {error}") from None
    pairs = pairwise((*words, "--"))
    return {word[2:].partition("=")[0]: _value(word, after) for word, after in pairs if word.startswith("--")}


def _value(word: str, after: str) -> str:
    name, equals, value = word.partition("=")
    if equals:
        return value
    return "" if after.startswith("--") or name == "--" else after


def _count(text: str, name: str, where: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:9]) <= 10**8 or len(text) > 9:
        raise UsageError(f"{where}: --{name} is {text[:40]!r}; give a whole number above 0")
    return int(text)


def _sharding(flags: Mapping[str, str]) -> Sharding:
    if "use-megatron-fsdp" in flags:
        return SHARED.get(flags.get("data-parallel-sharding-strategy", "no_shard"), "none")
    if "use-torch-fsdp2" in flags:
        return "parameters"
    return "optimizer" if "use-distributed-optimizer" in flags else "none"


def _stages(flags: Mapping[str, str], counts: Mapping[str, int], pipeline: int, where: str) -> tuple[int, ...]:
    """Layers of each stage, where the file says them."""
    if "pipeline-model-parallel-layout" in flags:
        return layers_of(flags["pipeline-model-parallel-layout"], pipeline, where)
    layers, per = counts.get("num-layers", 0), counts.get("num-layers-per-virtual-pipeline-stage", 0)
    if per and layers:
        return (per,) * (layers // per)
    first, last = (counts.get(f"decoder-{end}-pipeline-num-layers", 0) for end in ("first", "last"))
    if layers and (first or last) and pipeline > 2:
        named = (first > 0) + (last > 0)
        share, rest = divmod(layers - first - last, pipeline - named)
        if rest or share < 0:
            raise UsageError(f"{where}: {layers - first - last} layers do not divide by {pipeline - named} stages")
        return (*((first,) if first else ()), *(share,) * (pipeline - named), *((last,) if last else ()))
    return ()


def layers_of(layout: str, pipeline: int, where: str) -> tuple[int, ...]:
    """Layers of each stage of a layout string such as `Et*3|(tt|)*29,m|L`. Raises UsageError for what is none."""
    written = layout.replace(",", "").replace(" ", "").strip("\"'")
    while (match := _REPEATED.search(written)) is not None:
        unit = match[1].strip("()")
        if int(match[2][:6]) * len(unit) > MOST_LAYERS:
            raise UsageError(f"{where}: the layout {layout[:60]!r} has more than {MOST_LAYERS} layers")
        written = written[: match.start()] + unit * int(match[2]) + written[match.end() :]
    if set(written) - set("EtmL|"):
        raise UsageError(f"{where}: {layout[:60]!r} is no pipeline layout; write stages of E, t, m, L apart by |")
    stages = tuple(part.count("t") for part in written.split("|"))
    if len(stages) % pipeline:
        raise UsageError(f"{where}: the layout has {len(stages)} stages, which {pipeline} ranks do not divide")
    return stages


def _recompute(flags: Mapping[str, str]) -> Recompute:
    """What runs again; `--recompute-activations` says the same as the granularity `selective`."""
    if flags.get("recompute-granularity") == "selective" or "recompute-activations" in flags:
        return "selective"
    return flags.get("recompute-granularity") == "full"


def _unread(flags: Mapping[str, str]) -> list[str]:
    """What a plan has no words for."""
    told = []
    if _recompute(flags) == "selective":
        told.append("selective recompute: there of attention's core alone, here of all but products")
    if flags.get("recompute-method") == "block":
        told.append("recompute of the first layers of each stage: taken for all")
    if "m" in flags.get("pipeline-model-parallel-layout", ""):
        told.append("layers of multi-token prediction")
    if "overlap-moe-expert-parallel-comm" in flags:
        told.append("experts' messages beside computation")
    return told
