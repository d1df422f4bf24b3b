"""What a capture holds: blocks, sizes, losses, saved bytes and FLOPs, for small models of the example families."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from examples import models
from placer.errors import CaptureError, UsageError
from placer.graph import Affine, Graph
from placer.tracer import capture, coverage, random_batch, resolve, trace

pytestmark = pytest.mark.in_turns

ROWS = 4


class Perceptron(nn.Module):
    """Layers one after the other, without a configuration and without a loss."""

    def __init__(self, depth: int = 6, width: int = 8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        scores: torch.Tensor = self.last(x)
        return scores


class Branching(nn.Module):
    """A branch that depends on the value of a tensor cannot be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return -x
        y: torch.Tensor = self.linear(x)
        return y


def squared(output: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    assert isinstance(output, torch.Tensor)
    return nn.functional.mse_loss(output, batch["y"])


def loss_of(output: object) -> torch.Tensor:
    found = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.fixture(scope="module")
def llama() -> Graph:
    return capture("examples.models:tiny_llama", batch=f"{ROWS}x12")


def test_identical_layers_share_one_class_and_each_is_a_block(llama: Graph) -> None:
    layers = [block for block in llama.blocks if block.name.startswith("model.layers.")]
    assert len(layers) == 4
    assert len({block.kind for block in layers}) == 1
    assert [block.name for block in llama.blocks if block not in layers] == ["model.embed_tokens", "model.norm+lm_head"]


def test_every_value_flows_forward_and_one_crosses_between_layers(llama: Graph) -> None:
    for index, block in enumerate(llama.blocks):
        for reference in block.inputs:
            if reference.startswith("b"):
                assert int(reference[1:].split(".")[0]) < index
    assert [len(llama.crossing(cut)) for cut in range(1, len(llama.blocks))] == [1] * (len(llama.blocks) - 1)


def test_the_graph_has_all_parameters_by_the_models_own_names(llama: Graph) -> None:
    model = resolve("examples.models:tiny_llama").build("meta")
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert {name: p.shape for name, p in llama.parameters.items() if not p.buffer} == expected


def test_the_labels_of_a_language_model_are_known_with_those_that_do_not_count(llama: Graph) -> None:
    assert (llama.loss.reduction, llama.loss.labels, llama.loss.ignore_index) == ("sum", "labels", -100)
    assert llama.loss.value == llama.outputs[0]


def test_dims_are_named_where_known(llama: Graph) -> None:
    assert llama.inputs[0].tensor.dims == ("batch", "sequence")
    assert llama.value("b0.0").dims == ("batch", "sequence", "hidden")
    assert llama.value("b1.0").dims == ("batch", "sequence", "hidden")
    assert ("batch", "sequence", "vocab") in {output.dims for _, op in llama.ops for output in op.outputs}
    layer = llama.block_class(1)
    assert ("batch", "heads", "sequence", None) in {output.dims for op in layer.ops for output in op.outputs}
    for _, op in llama.ops:
        for output in op.outputs:
            assert len(output.dims) == len(output.shape)
            for name, size in zip(output.dims, output.shape, strict=True):
                assert (name == "batch") == (size == Affine(0, 1))


def test_a_graph_survives_its_json(llama: Graph) -> None:
    assert Graph.from_json(llama.to_json()) == llama


def test_random_batches_stay_within_the_vocabulary(llama: Graph) -> None:
    batch = random_batch(llama, 3, seed=1)
    assert batch["input_ids"].shape == (3, 12)
    assert int(batch["input_ids"].max()) < 96
    assert torch.equal(batch["input_ids"], random_batch(llama, 3, seed=1)["input_ids"])


def test_nothing_is_uncovered(llama: Graph) -> None:
    assert coverage(llama).share == 0


def test_tied_embeddings_are_one_parameter_of_two_blocks() -> None:
    graph = capture("examples.models:tiny_gpt2", batch=f"{ROWS}x12")
    assert graph.tied == {"transformer.wte.weight": (0, len(graph.blocks) - 1)}


@pytest.mark.parametrize("factory", [models.tiny_unet, models.tiny_convnext, models.tiny_resnet])
def test_flops_and_saved_bytes_equal_torchs_own_counts(factory: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        model = factory()
    graph = capture(model, batch=models.example_batch(model, ROWS))
    batch = {name: tensor.to("meta") for name, tensor in random_batch(graph, ROWS, seed=0).items()}
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(model.train()(**batch))
        forward = counter.get_total_flops()
        loss.backward()  # type: ignore[no-untyped-call]
    assert graph.forward_flops == forward
    if factory is not models.tiny_convnext:  # the counter takes weight gradients of grouped convolutions x groups
        assert graph.backward_flops == counter.get_total_flops() - forward
    assert graph.saved_bytes == sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_a_folded_capture_equals_an_unfolded_one() -> None:
    for model in (Perceptron(), models.tiny_vit()):
        batch = {"x": (ROWS, 8)} if isinstance(model, Perceptron) else models.example_batch(model, ROWS)
        assert capture(model, batch=batch) == capture(model, batch=batch, fold=False)


def test_sizes_grow_with_the_rows_as_another_capture_finds_them() -> None:
    few, many = capture(Perceptron(), batch={"x": (2, 8)}), capture(Perceptron(), batch={"x": (7, 8)})
    assert few.classes == many.classes
    assert many.forward_flops == 2 * 7 * (6 * 8 * 8 + 8 * 3)


def test_a_loss_given_by_the_caller_is_part_of_the_graph() -> None:
    graph = capture(Perceptron(), batch={"x": (2, 8), "y": (2, 3)}, loss_fn=squared)
    assert (graph.loss.reduction, graph.loss.value) == ("sum", graph.outputs[0])
    assert capture(Perceptron(), batch={"x": (2, 8)}).loss.reduction == "none"


def test_weights_of_a_real_module_are_neither_copied_nor_changed() -> None:
    model = Perceptron().eval()
    before = copy.deepcopy(model.state_dict())
    capture(model, batch={"x": (2, 8)})
    assert not model.training
    assert len(model.layers) == 6
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_that_cannot_be_exported_names_its_source_line() -> None:
    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+ \(if x\.sum\(\) > 0:\)"):
        capture(Branching(), batch={"x": (2, 4)})


@pytest.mark.parametrize("batch", ["8xtwo", "0x4", {"x": "many"}, {}])
def test_a_batch_that_is_none_says_how_to_give_one(batch: str | dict[str, str]) -> None:
    with pytest.raises(UsageError, match="batch"):
        capture(Perceptron(), batch=batch)


@pytest.mark.parametrize(
    ("value", "found"),
    [({"ids": torch.zeros(99, 9), "mask": torch.zeros(99, 9)}, "a dict of 2"), (True, "True"), ((8, -1), "(8, -1)")],
)
def test_an_input_that_is_no_tensor_is_refused_without_its_numbers(value: object, found: str) -> None:
    with pytest.raises(UsageError) as refused:
        capture(Perceptron(), batch={"x": value})
    assert f"'x' of the batch is {found}; give a tensor" in str(refused.value)
    assert "module around the model" in str(refused.value)


def test_a_batch_longer_than_the_models_positions_is_refused() -> None:
    with pytest.raises(UsageError, match=r"input_ids of 33 tokens, GPT2LMHeadModel has 32 positions; give at most 32"):
        capture("examples.models:tiny_gpt2", batch="8x33")
    with pytest.raises(UsageError, match=r"labels of 17 tokens, WhisperForConditionalGeneration has 16 positions"):
        capture("examples.models:tiny_whisper", batch={"input_features": (2, 8, 32), "labels": (2, 17)})


def test_no_batch_where_nothing_implies_one_says_so() -> None:
    with pytest.raises(UsageError, match="nothing implies the batch of Perceptron"):
        capture(Perceptron())


def test_the_batch_of_a_model_of_timm_is_written_with_its_image() -> None:
    model = Perceptron()
    model.pretrained_cfg = {"input_size": (3, 160, 160)}  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"--batch x=1x3x160x160"):
        capture(model)


def _require_same_gradient(name: str, ours: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
    """Equal but for rounding: attention with a mask written out adds in another order than `is_causal` on some CPUs."""
    if ours is None or theirs is None:
        assert ours is theirs, name
        return
    rounding = 8 * torch.finfo(theirs.dtype).eps * theirs.abs().max()
    assert (ours - theirs).abs().max() <= rounding, name


@pytest.mark.parametrize("factory", dict.fromkeys(tiny for _, tiny in models.MODELS.values()))
def test_a_traced_model_gives_eager_loss_gradients_and_buffers_at_any_rows(factory: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = factory().train()
    example = models.example_batch(model, ROWS)
    graph = capture(model, batch=example)
    traced = trace(model, graph)
    assert traced.graph == graph
    assert set(traced.reference_of.values()) >= {f"b{i}.0" for i in range(len(graph.blocks))}
    for rows in (1, 3, ROWS):
        batch = random_batch(graph, rows, seed=rows)
        reference = copy.deepcopy(model)
        model.zero_grad()
        expected = loss_of(reference(**batch))
        expected.backward()  # type: ignore[no-untyped-call]
        found = traced.module(*(batch[name] for name in traced.input_names))[0]
        found.backward()
        assert torch.equal(found, expected)
        for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            _require_same_gradient(name, ours.grad, theirs.grad)
        for kept, expected_buffer in zip(model.buffers(), reference.buffers(), strict=True):
            assert torch.equal(kept, expected_buffer)


class ByPlace(nn.Module):
    """Takes its input by place alone."""

    def forward(self, x: torch.Tensor, /) -> torch.Tensor:
        return x.mean()


def test_inputs_by_place_alone_are_refused() -> None:
    with pytest.raises(UsageError, match=r"takes x by place alone.*leave out the /"):
        capture(ByPlace(), batch={"x": (2, 8)})


class FirstOfSome(nn.Module):
    """Goes through the first of its layers, as decoders of transformers do; one module has two names."""

    def __init__(self, aliased: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.alias = self.layers[0] if aliased else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:3][0:3:1]:
            x = x + layer(x)
        return x.square().mean()


@pytest.mark.parametrize("fold", [True, False])
def test_blocks_are_the_same_where_a_module_has_two_names(fold: bool) -> None:
    aliased, plain = (
        [block.name for block in capture(FirstOfSome(two), batch={"x": (4, 8)}, fold=fold).blocks]
        for two in (True, False)
    )
    assert aliased == plain == ["layers.0", "layers.1", "layers.2"]


class LeavesOut(nn.Module):
    """Label smoothing as the annotated transformer has it: the places that a mask takes, squeezed."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.one(x).log_softmax(-1)
        smooth = torch.full_like(scores, 0.1).index_fill_(0, torch.nonzero(y == 0).squeeze(), 0.0)
        return -(scores * smooth).sum()


def test_a_squeeze_of_what_values_count_is_refused_with_its_line() -> None:
    with pytest.raises(CaptureError, match=r"test_capture.py:\d+: aten::nonzero gives more or fewer numbers by"):
        trace(LeavesOut(), {"x": torch.randn(8, 6), "y": torch.arange(8) % 4})
