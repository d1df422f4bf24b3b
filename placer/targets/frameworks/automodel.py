"""NeMo Automodel (0.7, August 2026): sections of its YAML; the model keeps its Hugging Face names.

Read in components/distributed/{config.py,pipelining/config.py}, recipes/_dist_utils.py (unknown keys of a strategy are
an error) and components/optim/optimizer.py. Merge the sections into a recipe's YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import yaml

from placer.plans.plan import ScheduleName
from placer.plans.settings import RunSettings
from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout

# torch's names: the `interleaved_1f1b` of Automodel's own docstring is an error in torch, which looks it up.
SCHEDULES: Mapping[ScheduleName, str] = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
ABILITIES = Abilities(
    framework="NeMo Automodel", schedules=frozenset(SCHEDULES),
    shardings=frozenset(("none", "gradients", "parameters")), degrees=frozenset(("tensor", "context", "expert")),
    precisions=frozenset(("float32", "bfloat16-autocast", "bfloat16")),
)  # fmt: skip


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout Automodel has no words for."""
    yield from ABILITIES.lacks(layout)
    if layout.sharding == "none" and max(layout.tensor, layout.context, layout.expert, layout.pipeline) > 1:
        yield "NeMo Automodel replicates whole state (strategy ddp) beside no other parallelism"
    if layout.sharding == "none" and layout.settings.precision == "bfloat16":
        yield "NeMo Automodel keeps no float32 master weights beside whole state in bfloat16 (strategy ddp)"


def sections(layout: HybridLayout) -> dict[str, dict[str, object]]:
    """The layout, the batch, the precision and the optimizer, section by section."""
    local = layout.local_rows if layout.pipeline > 1 else layout.micro_rows
    clip = layout.settings.clip_norm
    return {
        "distributed": distributed(layout),
        "step_scheduler": {"global_batch_size": layout.rows, "local_batch_size": local},
        "model": {"torch_dtype": "float32"},  # weights and masters; what is computed in is the strategy's
        "optimizer": optimizer(layout.settings),
        "lr_scheduler": {"lr_decay_style": "constant", "lr_warmup_steps": 0},
        "clip_grad_norm": {"max_norm": inf if clip is None else clip},  # left out, it clips at a norm of 1
    }


def distributed(layout: HybridLayout) -> dict[str, object]:
    """The strategy with its degrees and its precision."""
    replicated = layout.sharding == "none"
    found: dict[str, object] = {
        "strategy": "ddp" if replicated else "fsdp2",
        "dp_size": layout.data_ranks,
        "tp_size": layout.tensor,
        "cp_size": layout.context,
        "pp_size": layout.pipeline,
        "ep_size": layout.expert,
        "activation_checkpointing": layout.recompute,
    }
    if layout.settings.precision == "bfloat16-autocast":
        found["autocast_dtype"] = "bfloat16"
    if not replicated:
        # Left out, it gathers parameters and computes in bfloat16.
        kept = "bfloat16" if layout.settings.precision == "bfloat16" else "float32"
        found |= {
            "sequence_parallel": layout.sequence_parallel,
            "reshard_after_forward": layout.sharding == "parameters",
            "mp_policy": {"param_dtype": kept, "reduce_dtype": "float32"},
        }
    if layout.pipeline > 1 and layout.stack is not None:
        found["pipeline"] = {
            "pp_schedule": SCHEDULES[layout.schedule],
            "pp_microbatch_size": layout.micro_rows,
            "pp_batch_size": layout.local_rows,
            "module_fqns_per_model_part": [list(layout.stack.names(part)) for part in layout.parts],
        }
    return found


def optimizer(settings: RunSettings) -> dict[str, object]:
    """torch's own, by its name."""
    found: dict[str, object] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "sgd":
        return {"_target_": "torch.optim.SGD", **found, "momentum": settings.momentum}
    return {"_target_": "torch.optim.AdamW", **found, "betas": list(settings.betas), "eps": settings.epsilon}


def text(layout: HybridLayout, _base: str, notes: tuple[str, ...]) -> str:
    """The YAML."""
    return "".join(f"# {note}\n" for note in notes) + yaml.safe_dump(sections(layout), sort_keys=False)
