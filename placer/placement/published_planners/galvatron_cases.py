"""Galvatron's two published searches: the profiles of its test, the plans and throughputs that it expects.

Source: tests/search_engine/test_parallelsim_optimization.py of PKU-DAIR/Hetu-Galvatron (cea12ff): 28 layers, hidden
4096, sequence 8192 on 8 devices of 36 GiB, batch 64, bf16; case 0 chooses per layer, case 1 one choice for all layers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from placer.errors import UsageError
from placer.io.files import read_text
from placer.placement.published_planners.galvatron import GalvatronPlan, GalvatronProblem, GalvatronProfile, LayerChoice

LAYERS, HIDDEN, SEQUENCE, DEVICES, MEMORY_MB, BATCH = 28, 4096, 8192, 8, 36 * 1024.0, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GalvatronCase:
    """A published search: microbatches, whether layers may differ, the plan and the throughput that it expects."""

    name: str
    chunks: int
    per_layer: bool
    throughput: float
    plan: GalvatronPlan


def _layers(*counted: tuple[int, LayerChoice]) -> tuple[LayerChoice, ...]:
    return tuple(choice for count, choice in counted for _ in range(count))


CASES = (
    GalvatronCase(
        name="llama 28 layers, per layer",
        chunks=32,
        per_layer=True,
        throughput=2.6485091403918064,
        plan=GalvatronPlan(
            layers=_layers(
                (14, LayerChoice(tensor=4, sharded=True, recompute=True)),
                (12, LayerChoice(tensor=4, sharded=True, recompute=False)),
                (2, LayerChoice(tensor=4, sharded=False, recompute=False)),
            ),
            vocabulary_tensor=8,
            vocabulary_sharded=False,
        ),
    ),
    GalvatronCase(
        name="llama 28 layers, all alike",
        chunks=8,
        per_layer=False,
        throughput=2.5246283459057333,
        plan=GalvatronPlan(
            layers=_layers((28, LayerChoice(tensor=1, sharded=True, recompute=True))),
            vocabulary_tensor=1,
            vocabulary_sharded=True,
        ),
    ),
)


def case_problem(case: GalvatronCase, path: Path) -> GalvatronProblem:
    """The problem of a case; `path` is the file with the test's inputs. Raises UsageError where it is none."""
    return GalvatronProblem(
        profile=read_inputs(path, SEQUENCE),
        layers=LAYERS,
        hidden=HIDDEN,
        sequence=SEQUENCE,
        devices=DEVICES,
        memory_MB=MEMORY_MB,
        batch=BATCH,
        chunks=case.chunks,
    )


class _Layer(BaseModel):
    """Memory of a layer at one sequence length."""

    model_config = ConfigDict(frozen=True)
    parameter_size: float
    tp_activation_per_bsz_dict: dict[str, float]


class _Other(BaseModel):
    """Memory of the vocabulary at one sequence length."""

    model_config = ConfigDict(frozen=True)
    model_states: dict[int, float]
    activation: dict[int, float]


class _Memory(BaseModel):
    """Memory by sequence length."""

    model_config = ConfigDict(frozen=True)
    layertype_0_sp: dict[int, _Layer]
    other_memory_pp_off_sp: dict[int, _Other]


class _Hardware(BaseModel):
    """Bandwidths, the overlap coefficient, milliseconds of collectives."""

    model_config = ConfigDict(frozen=True)
    allreduce: dict[str, float]
    overlap: dict[str, float]
    sp: dict[str, float]


class _Inputs(BaseModel):
    """The file."""

    model_config = ConfigDict(frozen=True)
    create_hardware_configs: _Hardware
    create_sequence_memory_config_sp: _Memory
    create_sequence_time_config: dict[str, float]


def read_inputs(path: Path, sequence: int) -> GalvatronProfile:
    """The profile at a sequence length: layers by a quadratic fit over lengths, the vocabulary by a straight line.

    Weights are those at the shortest length, memory that at the longest, scaled: as in the published reader.
    """
    try:
        file = _Inputs.model_validate(json.loads(read_text(path, "Galvatron's inputs")))
    except (ValidationError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} holds no inputs of Galvatron's test: {str(error).splitlines()[0]}") from None
    times, memory, hardware = (
        file.create_sequence_time_config,
        file.create_sequence_memory_config_sp,
        file.create_hardware_configs,
    )
    longest, shortest = max(memory.layertype_0_sp), min(memory.layertype_0_sp)
    kept = memory.layertype_0_sp[longest].tp_activation_per_bsz_dict
    other = memory.other_memory_pp_off_sp[longest]
    scale = sequence / longest
    return GalvatronProfile(
        layer_ms=_fitted(times, "layertype_0_", 2, sequence),
        vocabulary_ms=_fitted(times, "layertype_other_", 1, sequence),
        layer_weights_MB=memory.layertype_0_sp[shortest].parameter_size,
        layer_kept_MB={int(t): size * scale for t, size in kept.items() if t != "checkpoint"},
        layer_checkpoint_MB=kept["checkpoint"] * scale,
        vocabulary_states_MB=other.model_states,
        vocabulary_kept_MB={t: size * (2 / 3 + scale / 3) for t, size in other.activation.items()},
        near_bandwidth=_bandwidths(hardware.allreduce, near=True),
        far_bandwidth=_bandwidths(hardware.allreduce, near=False),
        gather_ms=_gathers(hardware.sp),
        gather_fit={t: _line(hardware.sp, t) for t in {t for t, _ in _gathers(hardware.sp)}},
        overlap=hardware.overlap["overlap_coe"],
    )


def _fitted(times: dict[str, float], prefix: str, degree: int, sequence: int) -> float:
    """Milliseconds at `sequence` by a polynomial through those of one sample."""
    found = {
        int(key.rsplit("seq", 1)[1]): ms for key, ms in times.items() if key.startswith(prefix) and "_bsz1_" in key
    }
    lengths, values = np.array(list(found), dtype=np.float64), np.array(list(found.values()))
    return float(np.polyval(np.polyfit(lengths, values, degree), sequence))


def _bandwidths(allreduce: dict[str, float], *, near: bool) -> dict[int, float]:
    """GB/s by devices: of neighbours, or of devices apart; all devices are neighbours."""
    found = {tuple(int(part) for part in key.split("_") if part.isdigit()): value for key, value in allreduce.items()}
    sizes = {size for size, _ in found}
    return {size: found.get((size, int(near)), found[size, 1]) for size in sizes}


def _gathers(sp: dict[str, float]) -> dict[tuple[int, int], float]:
    """Milliseconds of an allgather, half an all-reduce, by (devices, megabytes)."""
    found = {}
    for key, ms in sp.items():
        kind, _, devices, size, _ = key.split("_")
        if kind == "allreduce":
            found[int(devices), int(size.removesuffix("MB"))] = ms / 2
    return found


def _line(sp: dict[str, float], devices: int) -> tuple[float, float]:
    """Slope and rest of a straight line through the allgathers of `devices`."""
    found = {size: ms for (at, size), ms in _gathers(sp).items() if at == devices}
    slope, rest = np.polyfit(np.array(list(found), dtype=np.float64), np.array(list(found.values())), 1)
    return float(slope), float(rest)
