"""torchtitan 0.3.0 (PyPI, September 2026): a Python module with a function that returns its configuration.

Started with `torchtitan.train --module FILE --config placer_plan`. Its base is one of torchtitan's own configurations,
which says model, data and tokenizer; placer's plan replaces its parallelism, batch, recompute, precision and optimizer.
Read in torchtitan/config/configs.py, trainer.py, distributed/{parallel_dims,pipeline_parallel}.py of that wheel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from placer.plans.plan import ScheduleName
from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.hybrid_layout import HybridLayout
from placer.targets.frameworks.layer_stack import StagePart

# Schedules of torch.distributed.pipelining, which torchtitan takes by name. ZB-H1 has one stage a rank, torch's
# zero-bubble schedules have two or more.
SCHEDULES: Mapping[ScheduleName, str] = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
ABILITIES = Abilities(
    framework="torchtitan 0.3.0", schedules=frozenset(SCHEDULES),
    shardings=frozenset(("none", "gradients", "parameters")), degrees=frozenset(("tensor", "context", "expert")),
    precisions=frozenset(("float32", "bfloat16", "bfloat16-autocast")), optimizers=frozenset(("adamw",)),
    selective=True,
)  # fmt: skip
RESHARDS = {"none": "default", "gradients": "never", "parameters": "always"}
# Configurations that torchtitan ships, by layers, width: llama3/config_registry.py and its __init__.py.
BASES = {(32, 4096): "llama3_8b", (80, 8192): "llama3_70b", (126, 16384): "llama3_405b"}
LLAMA = "torchtitan.models.llama3.config_registry"


def lacks(layout: HybridLayout) -> Iterator[str]:
    """What of a layout torchtitan has no words for."""
    yield from ABILITIES.lacks(layout)
    if layout.expert > 1 and layout.sharding == "none":
        yield "torchtitan's experts lie on the ranks that share parameters, and the plan has replicated state"
    if layout.context > 1 and layout.sharding == "none" and layout.data > 1:
        yield "torchtitan replicates no state beside context parallelism (its ranks share parameters)"
    if layout.pipeline > 1 and not all(part.layers for part in layout.parts):
        yield "torchtitan has at least one layer on each stage"


def parallelism(layout: HybridLayout) -> dict[str, object]:
    """The fields of `ParallelismConfig` that differ from their defaults."""
    replicated = layout.sharding == "none"
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": layout.data if replicated else 1,
        "data_parallel_shard_degree": 1 if replicated else layout.data_ranks,
        "fsdp_reshard_after_forward": RESHARDS[layout.sharding],
        "tensor_parallel_degree": layout.tensor,
        "enable_sequence_parallel": layout.sequence_parallel,
        "context_parallel_degree": layout.context,
        "expert_parallel_degree": layout.expert,
        "pipeline_parallel_degree": layout.pipeline,
    }
    if layout.pipeline > 1:
        fields |= {
            "pipeline_parallel_schedule": SCHEDULES[layout.schedule],
            "pipeline_parallel_microbatch_size": layout.micro_rows,
            "module_fqns_per_model_part": [_modules(layout, part) for part in layout.parts],
        }
    return fields


def training(layout: HybridLayout) -> dict[str, object]:
    """The fields of `TrainingConfig` that the plan says."""
    local = layout.local_rows if layout.pipeline > 1 else layout.micro_rows
    fields: dict[str, object] = {"local_batch_size": local, "global_batch_size": layout.rows}
    if layout.length:
        fields["seq_len"] = layout.length
    fields["dtype"] = "float32"
    fields["mixed_precision_param"] = "float32" if layout.settings.precision == "float32" else "bfloat16"
    # Left out, torchtitan clips at a norm of 1.
    fields["max_norm"] = inf if layout.settings.clip_norm is None else layout.settings.clip_norm
    if layout.pipeline > 1 or layout.expert > 1:
        fields["disable_cuda_graphs"] = True  # refused beside pipelines and blocking dispatchers
    return fields


def base_of(layout: HybridLayout, width: int) -> str:
    """The configuration of torchtitan's that a Llama of so many layers is; "" where none is known."""
    name = BASES.get((layout.stack.count if layout.stack else 0, width), "")
    return f"{LLAMA}:{name}" if name and layout.model.startswith("Llama") else ""


def text(layout: HybridLayout, base: str, notes: tuple[str, ...]) -> str:
    """The module. base: `package.module:function`, which returns a `Trainer.Config`."""
    module, _, function = base.partition(":")
    settings = layout.settings
    again = {False: "", True: "FullAC", "selective": "SelectiveAC"}[layout.recompute]
    recompute = f"{again}.Config()" if again else "None"
    optimizer = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.epsilon,
                 "weight_decay": settings.weight_decay}  # fmt: skip
    lines = [
        '"""' + notes[0], "", *notes[1:], '"""', "", "from dataclasses import replace", "",
        "from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw",
        "from torchtitan.config import ParallelismConfig",
        *([f"from torchtitan.distributed.activation_checkpoint import {again}"] if again else []),
        f"from {module} import {function} as base",
        "", "",
        "def placer_plan():",
        "    config = base()",
        f"    config.parallelism = ParallelismConfig({_arguments(parallelism(layout))}    )",
        f"    config.training = replace(config.training, {_arguments(training(layout))}    )",
        f"    config.activation_checkpoint = {recompute}",
        f"    config.optimizer = default_adamw({_arguments(optimizer)}    )",
        # Its own configurations warm the rate up and let it fall; the plan's is one number.
        "    config.lr_scheduler = LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0)",
        "    return config",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _modules(layout: HybridLayout, part: StagePart) -> list[str]:
    """The names that torchtitan gives what a stage holds."""
    layers = [f"layers.{number}" for number in range(part.first, part.last)]
    return [*(["tok_embeddings"] if part.before else []), *layers, *(["norm", "lm_head"] if part.behind else [])]


def _arguments(fields: Mapping[str, object]) -> str:
    return "\n" + "".join(f"        {name}={_literal(value)},\n" for name, value in fields.items())


def _literal(value: object) -> str:
    """A value as Python reads it without names: infinity is a number too large for a float."""
    return "1e400" if value == inf else repr(value)
