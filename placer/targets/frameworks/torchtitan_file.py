"""Reads the parallelism of a torchtitan configuration without running it.

    .toml    up to 0.2.2: sections [parallelism], [training], [activation_checkpoint]
    .py      from 0.3.0 on: calls of ParallelismConfig and TrainingConfig (or `replace(config.training, ...)`) with
             literal arguments, and FullAC, in one function or file

What is computed instead of written is refused by name.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from placer.errors import UsageError
from placer.plans.plan import Recompute, ScheduleName
from placer.targets.frameworks.asked_layout import AskedLayout

SCHEDULES: Mapping[str, ScheduleName] = {
    "gpipe": "gpipe", "1f1b": "1f1b", "interleaved1f1b": "interleaved", "interleavedzerobubble": "zero-bubble",
    "zbvzerobubble": "zero-bubble", "loopedbfs": "interleaved",
}  # fmt: skip
SAME = frozenset(("gpipe", "1f1b", "interleaved1f1b"))


def read_torchtitan(text: str, where: str, layers: int = 0) -> AskedLayout:
    """The layout of a configuration. layers: of the model, for stages that the file does not name.

    Raises UsageError for what is no such file, and for fields that are computed.
    """
    sections = _toml(text, where) if where.endswith(".toml") else _python(text, where)
    said = _Section(sections.get("parallelism", {}), where)
    training = _Section(sections.get("training", {}), where)
    shard, replicate = said.count("data_parallel_shard_degree", -1), said.count("data_parallel_replicate_degree", 1)
    pipeline, micro = said.count("pipeline_parallel_degree", 1), said.count("pipeline_parallel_microbatch_size", 1)
    stages = _stages(said, pipeline, layers)
    schedule = said.text("pipeline_parallel_schedule", "1F1B")
    recompute = _recompute(sections)
    return AskedLayout(
        framework="torchtitan", pipeline=pipeline, virtual=max(1, len(stages) // pipeline),
        tensor=said.count("tensor_parallel_degree", 1), context=said.count("context_parallel_degree", 1),
        expert=said.count("expert_parallel_degree", 1), data=0 if shard < 0 else shard * replicate,
        rows=max(0, training.count("global_batch_size", -1)),
        micro_rows=micro if pipeline > 1 else training.count("local_batch_size", 8),
        length=training.count("seq_len", 2048), sharding=_sharding(shard, replicate, said, pipeline),
        schedule=SCHEDULES.get(schedule.lower()), recompute=RECOMPUTES.get(recompute, False), stages=stages,
        unread=(*_unread(schedule, recompute, shard, replicate),),
    )  # fmt: skip


class _Section:
    """Fields of one section."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def count(self, name: str, default: int) -> int:
        """A whole number; -1 where the framework is to choose."""
        found = self.fields.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not (0 < found <= 10**8 or found == -1):
            raise UsageError(f"{self.where}: {name} is {str(found)[:40]}; give a whole number above 0")
        return found

    def text(self, name: str, default: str) -> str:
        """A word."""
        found = self.fields.get(name, default)
        if not isinstance(found, str):
            raise UsageError(f"{self.where}: {name} is {str(found)[:40]}; give a word such as {default}")
        return found


def _toml(text: str, where: str) -> dict[str, dict[str, Any]]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is no TOML: {error}") from None
    sections = {name: value for name, value in found.items() if isinstance(value, dict)}
    if "parallelism" not in sections:
        raise UsageError(f"{where} has no section [parallelism]; give a configuration of torchtitan")
    return sections


def _python(text: str, where: str) -> dict[str, dict[str, Any]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{where} is no Python: {str(error)[:200]}") from None
    sections: dict[str, dict[str, Any]] = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _section(call)
        if name in sections:
            raise UsageError(f"{where} has several configurations; give a file with the one that is meant")
        if name:
            sections[name] = (
                dict(_arguments(call, where)) if name != "activation_checkpoint" else {"mode": _called(call)}
            )
    if "parallelism" not in sections:
        raise UsageError(f"{where} calls no ParallelismConfig; give a configuration of torchtitan")
    return sections


def _section(call: ast.Call) -> str:
    """Which section a call makes; "" for other calls."""
    name = _called(call)
    if name in ("ParallelismConfig", "TrainingConfig"):
        return name.removesuffix("Config").lower()
    if name == "replace" and call.args and isinstance(call.args[0], ast.Attribute):
        return call.args[0].attr if call.args[0].attr in ("parallelism", "training") else ""
    return "activation_checkpoint" if name in ("FullAC", "SelectiveAC", "MemoryBudgetAC") else ""


def _called(call: ast.Call) -> str:
    """The name of what is called: of `FullAC.Config()` the class."""
    target = call.func
    if isinstance(target, ast.Attribute) and target.attr == "Config" and isinstance(target.value, ast.Name):
        return target.value.id
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _arguments(call: ast.Call, where: str) -> Iterator[tuple[str, Any]]:
    for keyword in call.keywords:
        try:
            yield keyword.arg or "**", ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise UsageError(
                f"{where}, line {keyword.value.lineno}: {keyword.arg or '**'} is computed, not written; write its value"
            ) from None


def _stages(said: _Section, pipeline: int, layers: int) -> tuple[int, ...]:
    """Layers of each stage, where the file or torchtitan's own rule says them."""
    named = said.fields.get("module_fqns_per_model_part")
    if isinstance(named, list) and all(isinstance(part, list) for part in named) and pipeline > 1:
        return tuple(sum(str(module).startswith("layers.") for module in part) for part in named)
    per = said.fields.get("pipeline_parallel_layers_per_stage")
    if pipeline > 1 and isinstance(per, int) and per > 0 and layers:
        return (*(per,) * (layers // per), *((layers % per,) if layers % per else ()))
    return ()


def _sharding(shard: int, replicate: int, said: _Section, pipeline: int) -> Any:
    """-1: all ranks left share, those of a pipeline without gathering again (the default there)."""
    if shard == 1 and replicate >= 1:
        return "none"
    policy = said.text("fsdp_reshard_after_forward", "default")
    return "gradients" if policy == "never" or (policy == "default" and pipeline > 1) else "parameters"


RECOMPUTES: dict[str, Recompute] = {"none": False, "selective": "selective", "full": True}


def _recompute(sections: Mapping[str, Mapping[str, Any]]) -> str:
    mode = str(sections.get("activation_checkpoint", {}).get("mode", "none")).lower().removesuffix("ac")
    return mode


def _unread(schedule: str, recompute: str, shard: int, replicate: int) -> Iterator[str]:
    if schedule.lower() not in SAME:
        yield f"the schedule {schedule[:40]}: taken for {SCHEDULES.get(schedule.lower(), 'whichever is fastest')}"
    if recompute == "selective":
        yield "selective recompute: there every other product runs again too, here none"
    if recompute not in RECOMPUTES:
        yield f"recompute {recompute[:40]}: taken for none"
    if shard != 1 and replicate > 1:
        yield f"state shared within {shard} ranks and replicated {replicate} times: taken for shared by all"
