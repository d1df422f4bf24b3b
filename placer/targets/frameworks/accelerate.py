"""Hugging Face accelerate 1.15: the YAML that `accelerate launch --config_file` reads.

Read in commands/config/config_args.py (unknown keys are an error there) and parallelism_config.py: the mesh is
dp_replicate x dp_shard x cp x tp, whose product is the number of processes. It says nothing of batches; the notes do.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout

ABILITIES = Abilities(
    framework="accelerate 1.15", shardings=frozenset(("none", "gradients", "parameters")),
    degrees=frozenset(("tensor", "context")), precisions=frozenset(("float32", "bfloat16-autocast")),
)  # fmt: skip
MIXED = {"float32": "no", "bfloat16-autocast": "bf16"}

# Where it starts several processes on CPUs without torchrun, `accelerate launch` does so by MPI.
ON_CPUS = "ACCELERATE_USE_CPU=true torchrun --nproc-per-node {} PROGRAM"


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout accelerate has no words for."""
    yield from ABILITIES.lacks(layout)
    shared = layout.sharding != "none" and layout.data > 1
    if layout.data > 1 and not shared and max(layout.tensor, layout.context) > 1:
        yield "accelerate replicates state beside tensor or context parallelism only where it is shared too"
    if layout.recompute and not shared:
        yield "accelerate runs forwards again (fsdp_activation_checkpointing) only where parameters are shared"
    if layout.on_cpus and (shared or max(layout.tensor, layout.context) > 1):
        # It would start, and train each replica apart from the others (seen with 1.15, `state.py`).
        yield "on CPUs accelerate trains whole replicas alone; it shares state and cuts layers on accelerators"


def document(layout: HybridLayout) -> dict[str, object]:
    """The YAML's document."""
    shared = (layout.sharding != "none" and layout.data > 1) or layout.context > 1
    several = "MULTI_CPU" if layout.on_cpus else "MULTI_GPU"
    found: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if shared else (several if layout.world > 1 else "NO"),
        "num_processes": layout.world,
        "mixed_precision": MIXED[layout.settings.precision],
        "use_cpu": layout.on_cpus,
    }
    if shared:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.sharding == "parameters",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": layout.recompute,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if max(layout.tensor, layout.context) > 1:
        found["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": 1,
            "parallelism_config_dp_shard_size": layout.data,
            "parallelism_config_tp_size": layout.tensor,
            "parallelism_config_cp_size": layout.context,
        }
    return found


def text(layout: HybridLayout, _base: str, notes: tuple[str, ...]) -> str:
    """The YAML."""
    batch = (
        f"in the program: {layout.micro_rows} rows a device, gradient_accumulation_steps {layout.microbatches}, "
        f"{layout.rows} rows a step"
    )
    start = f"on CPUs without MPI: {ON_CPUS.format(layout.world)}" if layout.on_cpus and layout.world > 1 else ""
    return "".join(f"# {note}\n" for note in (*notes, batch, start) if note) + yaml.safe_dump(
        document(layout), sort_keys=False
    )
