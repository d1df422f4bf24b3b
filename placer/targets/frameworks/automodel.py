"""NeMo Automodel (August 2026): the sections of its YAML that say a layout; the model keeps its Hugging Face names.

Read in components/distributed/{config.py,pipelining/config.py} and examples/llm_benchmark. Merge the sections into a
recipe's YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from placer.plans.plan import ScheduleName
from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout

SCHEDULES: Mapping[ScheduleName, str] = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved_1f1b"}
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


def sections(layout: HybridLayout) -> dict[str, dict[str, object]]:
    """`distributed` and `step_scheduler`."""
    replicated = layout.sharding == "none"
    distributed: dict[str, object] = {
        "strategy": "ddp" if replicated else "fsdp2",
        "dp_size": layout.data_ranks,
        "tp_size": layout.tensor,
        "cp_size": layout.context,
        "pp_size": layout.pipeline,
        "ep_size": layout.expert,
        "sequence_parallel": layout.sequence_parallel,
        "activation_checkpointing": layout.recompute,
    }
    if not replicated:
        distributed["reshard_after_forward"] = layout.sharding == "parameters"
    if layout.pipeline > 1 and layout.stack is not None:
        distributed["pipeline"] = {
            "pp_schedule": SCHEDULES[layout.schedule],
            "pp_microbatch_size": layout.micro_rows,
            "pp_batch_size": layout.local_rows,
            "module_fqns_per_model_part": [list(layout.stack.names(part)) for part in layout.parts],
        }
    local = layout.local_rows if layout.pipeline > 1 else layout.micro_rows
    return {
        "distributed": distributed,
        "step_scheduler": {"global_batch_size": layout.rows, "local_batch_size": local},
    }


def text(layout: HybridLayout, _base: str, notes: tuple[str, ...]) -> str:
    """The YAML."""
    return "".join(f"# {note}\n" for note in notes) + yaml.safe_dump(sections(layout), sort_keys=False)
