"""Weights: the seed's under every layout, pretrained ones by slices, back to a folder, a rank never having more."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import weight_ranks
from examples.parity.cases import Case, plan_of
from examples.parity.named_splits import split_plan
from placer import tracer
from placer.errors import StalePlanError, UsageError
from placer.plans.plan import Plan
from placer.runtime.checkpoint.folder import reader_of
from placer.runtime.spmd import Axis, Pieces
from placer.runtime.weights.deferred_init import DeferredInit, UnreplayableError
from placer.runtime.weights.hf_export import export_weights
from placer.runtime.weights.hf_folder import pretrained
from placer.runtime.weights.meta_model import prepared_model
from placer.runtime.weights.model_state import ModelState
from placer.runtime.weights.rank_weights import Box, ModelInMemory
from placer.runtime.weights.same_numbers import same_numbers
from pool import on_ranks
from split_pickers import megatron_llama
from weight_plans import WORDS, layouts, split_and_sharded

pytestmark = pytest.mark.in_turns

MODELS = ("bert", "convnext", "gpt2", "llama", "mixtral", "qwen3_moe", "resnet", "t5", "vit", "whisper")
PLANS = {**layouts(), "TP2 x FSDP2": split_and_sharded()}
LLAMA = Case(model="examples.models:tiny_llama", precision="float32")


def made(name: str, device: str = "cpu") -> nn.Module:
    return tracer.resolve(f"examples.models:tiny_{name}").build(device, seed=5)


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_made_alone_has_the_bits_of_the_model_made_whole(name: str) -> None:
    with DeferredInit(small=64) as recording:
        model = made(name)
    for key, tensor in state(made(name)).items():
        assert torch.equal(recording.made(state(model)[key]), tensor), key


class Odd(nn.Module):
    """Initialised in ways that depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(40, 40))
        self.second = nn.Parameter(self.first.detach() * 2)
        nn.init.orthogonal_(self.first)
        nn.init.trunc_normal_(self.second[:20].detach())
        self.third = nn.Parameter(torch.empty(40, 40))
        generator = torch.Generator().manual_seed(3)
        self.third.data.normal_(generator=generator)
        self.register_buffer("table", torch.arange(1600.0).view(40, 40) @ self.third.detach())
        self.fourth = nn.Parameter(self.third.detach()[3:30, 5:])


def test_tensors_made_of_each_other_are_made_in_their_order() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with DeferredInit(small=0) as recording:
            model = Odd()
        torch.manual_seed(0)
        whole = Odd()
    for key, tensor in state(whole).items():
        assert torch.equal(recording.made(state(model)[key]), tensor), key


def test_drawing_by_the_values_of_a_large_tensor_is_said_to_be_impossible() -> None:
    with pytest.raises(UnreplayableError, match="draws random numbers by the values"), DeferredInit(small=0):
        torch.bernoulli(torch.rand(100))


@pytest.mark.parametrize("name", PLANS)
def test_the_seeds_weights_are_those_of_one_device_under_every_layout(name: str) -> None:
    plan = PLANS[name]
    assert set(on_ranks(plan.world_size, weight_ranks.initial, plan)) == {()}


ranges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda pair: (min(pair), max(pair))), min_size=1)


@given(first=ranges, second=ranges, rows=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_a_box_of_rows_of_a_box_is_what_slicing_twice_gives(
    first: list[tuple[int, int]], second: list[tuple[int, int]], rows: tuple[int, int]
) -> None:
    whole = torch.arange(42).view(6, 7)
    box = Box(shape=(6, 7), cuts=((0, tuple(first)), (1, tuple(second))))
    taken = box.of(whole)
    assert tuple(taken.shape) == box.taken
    start, end = min(rows), min(max(rows), taken.shape[0])
    assert torch.equal(box.rows(min(start, end), end).of(whole), taken[min(start, end) : end])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in several files."""
    place = tmp_path_factory.mktemp("llama")
    cast(transformers.PreTrainedModel, made("llama")).save_pretrained(place, max_shard_size="60KB")
    assert len(list(place.glob("*.safetensors"))) > 1
    return place


@pytest.mark.parametrize("name", MODELS)
def test_slices_of_a_folder_are_slices_of_the_model(name: str, tmp_path: Path) -> None:
    model = made(name)
    cast(transformers.PreTrainedModel, model).save_pretrained(tmp_path, max_shard_size="60KB")
    source = pretrained(str(tmp_path), made(name, "meta"), ModelInMemory({}))
    for key, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        boxes = [Box(shape=shape)]
        boxes += [
            Box(shape=shape, cuts=((dim, ((size // 2, size), (0, size // 3))),)) for dim, size in enumerate(shape)
        ]
        boxes += [box.rows(1, box.taken[0] // 2 + 1) for box in boxes[:2] if shape]
        for box in boxes:
            assert torch.equal(source.read(key, box), box.of(tensor)), (key, box)


LLAMA_PLANS: dict[str, Callable[[], Plan]] = {
    "FSDP2": lambda: plan_of(replace(LLAMA, replicas=2, sharding="parameters")),
    "TP2 x PP2": lambda: split_plan(replace(LLAMA, positions=2), 2, megatron_llama),
}


@pytest.mark.parametrize("name", LLAMA_PLANS)
def test_a_run_starts_from_the_weights_of_a_folder(name: str, folder: Path) -> None:
    plan, expected = LLAMA_PLANS[name](), made("llama").state_dict()
    found = on_ranks(plan.world_size, weight_ranks.from_folder, plan, str(folder), expected, verified=False)
    assert set(found) == {()}


@pytest.mark.parametrize("source", ["seed", "folder"])
@pytest.mark.parametrize("name", LLAMA_PLANS)
def test_a_rank_never_has_more_than_what_it_holds_and_the_largest_tensor(name: str, source: str, folder: Path) -> None:
    plan = LLAMA_PLANS[name]()
    every = [tensor.numel() * 4 for tensor in made("llama").parameters()]
    weights = str(folder) if source == "folder" else ""
    for peak, held in on_ranks(plan.world_size, weight_ranks.peak, plan, weights, verified=False):
        assert held < 0.6 * sum(every)
        # The largest drawn, then its piece beside it, and what is small enough to be real all the time.
        assert peak <= held + 2 * max(every) + 4096


def test_what_is_missing_unexpected_or_of_another_shape_is_named(folder: Path, tmp_path: Path) -> None:
    weights = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    model = made("llama", "meta")

    def refused(change: dict[str, torch.Tensor], without: str = "") -> Iterator[None]:
        changed = {name: tensor for name, tensor in {**weights, **change}.items() if name != without}
        save_file(changed, tmp_path / "model.safetensors")
        pretrained(str(tmp_path), model, ModelInMemory({}))
        yield

    with pytest.raises(UsageError, match=r"lacks model.norm.weight;"):
        next(refused({}, without="model.norm.weight"))
    with pytest.raises(UsageError, match=r"has what the model has not: model.bias"):
        next(refused({"model.bias": torch.zeros(2)}))
    with pytest.raises(UsageError, match=r"model.norm.weight is \(2,\), the model's"):
        next(refused({"model.norm.weight": torch.zeros(2)}))
    with pytest.raises(UsageError, match=r"has model.norm.weight as I8, and the model's model.norm.weight is floating"):
        next(refused({"model.norm.weight": torch.ones_like(weights["model.norm.weight"], dtype=torch.int8)}))


def test_what_is_no_folder_of_safetensors_is_told_apart(tmp_path: Path) -> None:
    model = made("llama", "meta")

    def refused(path: Path, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            pretrained(str(path), model, ModelInMemory({}))

    refused(tmp_path / "none", r"none does not exist; give a Hugging Face folder with model.safetensors")
    refused(tmp_path, r"has no model.safetensors; give")
    (tmp_path / "pytorch_model.bin").touch()
    refused(tmp_path, r"has no model.safetensors, only pytorch_model.bin, and pickled files are not read")
    refused(tmp_path / "pytorch_model.bin", r"pytorch_model.bin is a file; give")
    for part in (1, 2):
        save_file({"one": torch.zeros(2)}, tmp_path / f"model-0000{part}-of-00002.safetensors")
    refused(
        tmp_path, r"only model-00001-of-00002.safetensors, model-00002-of-00002.safetensors and 1 more, whose index"
    )
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"one": "lost.safetensors"}}')
    refused(tmp_path, r"has no lost.safetensors; give")


class Tied(nn.Module):
    """An embedding that is the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(2000, 1500)
        self.head = nn.Linear(1500, 2000, bias=False)
        self.head.weight = self.emb.weight


def test_unlike_values_under_the_names_of_one_tensor_are_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Tied()
    one = torch.randn(2000, 1500)
    other = one.clone()
    save_file({"emb.weight": one, "head.weight": other}, tmp_path / "model.safetensors")
    read = pretrained(str(tmp_path), model, ModelInMemory({}))
    assert torch.equal(read.read("head.weight", Box(shape=(2000, 1500))), one)
    other[-1, -1] += 1  # in the last of the pieces that are compared
    save_file({"emb.weight": one, "head.weight": other}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=r"unlike values for emb.weight and head.weight, which are one tensor of Tied"):
        pretrained(str(tmp_path), model, ModelInMemory({}))
    save_file({"emb.weight": one, "head.weight": one[:, :2].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="unlike values"):
        pretrained(str(tmp_path), model, ModelInMemory({}))


def test_a_state_with_unlike_values_for_one_tensor_is_refused() -> None:
    names = ("emb.weight", "head.weight")
    held = ModelState(
        stages={}, rest={names[0]: torch.zeros(3)}, aliases={names[0]: names[1:], names[1]: names[:1]},
        persistent=dict.fromkeys(names, (3,)), written=frozenset(), first_rank=0, group=None, unlike=False,
        pieces=Pieces({}, cast(Axis, None)),
    )  # fmt: skip
    held.load(dict.fromkeys(names, torch.ones(3)))
    assert held.rest[names[0]].tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match=r"the state has unlike values for emb.weight and head.weight"):
        held.load({names[0]: torch.ones(3), names[1]: torch.zeros(3)})


def test_numbers_are_the_same_whatever_their_types_and_also_where_they_are_none() -> None:
    spoilt = torch.tensor([1.0, math.nan])
    assert same_numbers(spoilt, spoilt.clone()) and not same_numbers(spoilt, torch.ones(2))
    fine = torch.tensor([0.1])
    assert not same_numbers(fine.bfloat16(), fine) and not same_numbers(fine, fine.bfloat16())
    assert same_numbers(fine.bfloat16(), fine.bfloat16().float())


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "t5"])
def test_weights_go_back_to_a_folder_that_transformers_loads(name: str, tmp_path: Path) -> None:
    case = Case(model=f"examples.models:tiny_{name}", precision="float32", positions=2)
    plan = plan_of(case)
    expected = on_ranks(2, weight_ranks.exported, plan, str(tmp_path / "ckpt"), verified=False)[0]
    checkpoint = reader_of(next((tmp_path / "ckpt").glob("step-*")))
    done = export_weights(checkpoint, made(name, "meta"), tmp_path / "weights", file_bytes=100_000)
    assert done.files > 1 and json.loads((tmp_path / "weights" / "config.json").read_text())["architectures"]
    loaded = type(made(name, "meta")).from_pretrained(tmp_path / "weights")  # type: ignore[attr-defined]
    for key, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[key]), key
    with pytest.raises(UsageError, match="is not an empty folder"):
        export_weights(checkpoint, made(name, "meta"), tmp_path / "weights")


def test_a_model_that_was_cast_is_the_same_and_one_with_frozen_parameters_another() -> None:
    plan, cpu = plan_of(replace(LLAMA, precision="float64")), torch.device("cpu")
    for dtype in (torch.float64, torch.bfloat16):
        cast_again = prepared_model(plan, made("llama").to(dtype), cpu)
        assert {one.dtype for one in cast_again.parameters()} == {torch.float64}
    frozen = made("llama")
    next(frozen.parameters()).requires_grad_(False)
    with pytest.raises(StalePlanError, match="its structure, shapes, types or frozen parameters differ"):
        prepared_model(plan, frozen, cpu)


def test_words_are_planned_for_every_layout() -> None:
    assert len(PLANS) == 10 and all(plan.model == plan_of(WORDS).model for plan in PLANS.values())
