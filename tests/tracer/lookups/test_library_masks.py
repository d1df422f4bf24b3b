"""What is looked up in values: masks that transformers leaves out in training are left out of a captured model, and no
others; checks that only raise are passed; targets of CTC losses stay rows."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import bad_models
from placer.errors import CaptureError
from placer.graph import Graph, Op
from placer.tracer import capture, trace
from placer.tracer.lookups.known_values import KnownValues

pytestmark = pytest.mark.in_turns

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
TOKENS = 16
BATCH = {"input_ids": (2, TOKENS), "labels": (2, TOKENS)}


def llama(**more: int) -> nn.Module:
    with torch.device("meta"):
        made: nn.Module = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=8, **more)
        )
    return made


def mistral(window: int) -> nn.Module:
    with torch.device("meta"):
        made: nn.Module = transformers.MistralForCausalLM(
            transformers.MistralConfig(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=window)
        )
    return made


def attention(graph: Graph) -> Op:
    return next(op for own in graph.classes for op in own.ops if op.kind == "attention")


def masked(graph: Graph) -> bool:
    return len(attention(graph).inputs) > 3


def test_a_decoder_says_by_a_flag_what_is_hidden_and_repeats_no_keys() -> None:
    graph = capture(llama(), batch=BATCH)
    assert not masked(graph)
    assert "True" in attention(graph).arguments and "enable_gqa=True" in attention(graph).arguments
    squares = [value for op in graph.block_class(-1).ops for value in op.outputs if len(value.shape) > 2]
    assert not [value for value in squares if [size.fixed for size in value.shape[-2:]] == [TOKENS, TOKENS]]


def test_a_batch_of_millions_of_tokens_is_masked_as_a_small_one() -> None:
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 4096, "vocab_size": 64}
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))
    graph = capture(model, batch={"input_ids": (2048, 4096), "labels": (2048, 4096)})
    assert not masked(graph) and graph.loss.reduction == "sum" and graph.notes == ()


def test_an_encoder_hides_nothing() -> None:
    with torch.device("meta"):
        model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    assert not masked(capture(model, batch=BATCH))


class _Padded(nn.Module):
    """Padding that forward makes: none, or the last token of each row."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.model, self.hidden = llama(), hidden

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        shown = torch.arange(TOKENS, device=input_ids.device).expand(input_ids.shape) < TOKENS - self.hidden
        ones = torch.ones(input_ids.shape, device=input_ids.device)
        loss: Tensor = self.model(input_ids, labels=labels, attention_mask=shown if self.hidden else ones).loss
        return loss


class _PaddedByAView(nn.Module):
    """Padding that forward makes of ones and hides tokens in through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        shown = torch.ones(input_ids.shape, device=input_ids.device)
        shown.narrow(1, 0, 2).zero_()
        loss: Tensor = self.model(input_ids, labels=labels, attention_mask=shown).loss
        return loss


def test_padding_written_through_a_view_is_a_mask() -> None:
    assert masked(capture(_PaddedByAView(), batch=BATCH))


@pytest.mark.parametrize("hidden", [0, 1])
def test_padding_of_ones_that_a_model_makes_hides_nothing(hidden: int) -> None:
    assert masked(capture(_Padded(hidden), batch=BATCH)) == bool(hidden)


def test_a_model_that_can_add_no_mask_is_captured_as_it_trains() -> None:
    """Nystromformer makes a mask of ones, which transformers leaves out; to its landmarks none could be added."""
    sizes = {**SIZES, "num_landmarks": 4, "segment_means_seq_len": TOKENS, "conv_kernel_size": 5}
    with torch.device("meta"):
        model = transformers.NystromformerForMaskedLM(transformers.NystromformerConfig(**sizes))
    assert capture(model, batch=BATCH).loss.reduction == "sum"


@pytest.mark.parametrize(("window", "kept"), [(8, True), (TOKENS, True), (TOKENS + 1, False)])
def test_a_window_shorter_than_the_sequence_is_a_mask(window: int, kept: bool) -> None:
    assert masked(capture(mistral(window), batch=BATCH)) == kept


@pytest.mark.parametrize("name", ["attention_mask", "position_ids"])
def test_what_a_batch_says_of_padding_or_of_sequences_in_a_row_is_a_mask(name: str) -> None:
    batch = {**{key: torch.zeros(size, dtype=torch.int64) for key, size in BATCH.items()}}
    batch[name] = torch.ones(2, TOKENS, dtype=torch.int64).cumsum(-1) - 1
    batch = {key: value.to("meta") for key, value in batch.items()}
    assert masked(capture(llama(use_cache=False), batch=batch))
    assert masked(capture(llama(), batch=batch)) == (name == "attention_mask")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("cache", [True, False])
def test_sequences_in_a_row_see_each_other_as_they_do_in_the_model(cache: bool, again: bool) -> None:
    """A model that makes a cache does not look for them; one that computes its layers again makes none in training."""
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=8, initializer_range=0.3)
    config.use_cache = cache
    model = transformers.LlamaForCausalLM(config).double().train()
    if again:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    tokens, positions = torch.randint(0, 64, (2, TOKENS)), torch.arange(TOKENS // 2).repeat(2, 2)
    batch = {"input_ids": tokens, "labels": tokens, "position_ids": positions}
    (traced,) = trace(model, batch).module(*batch.values())
    assert torch.allclose(traced, model(**batch).loss, rtol=1e-12)


class _Packed(nn.Module):
    """Two sequences a row, by positions that forward makes of constants; written in place or not."""

    def __init__(self, write: bool) -> None:
        super().__init__()
        self.model, self.write = llama(use_cache=False), write

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        half = TOKENS // 2
        positions = torch.arange(TOKENS if self.write else half, device=input_ids.device).repeat(1 if self.write else 2)
        if self.write:
            positions[half:] -= half
        loss: Tensor = self.model(input_ids=input_ids, labels=labels, position_ids=positions[None]).loss
        return loss


@pytest.mark.parametrize("write", [False, True])
def test_sequences_in_a_row_that_forward_knows_of_are_a_mask(write: bool) -> None:
    assert masked(capture(_Packed(write), batch=BATCH))


def _ends(values: Tensor) -> Tensor:
    return values[..., -1].max() == 4


def test_only_what_is_made_of_constants_is_known() -> None:
    known, given = KnownValues(), torch.zeros(4, dtype=torch.int64)
    with known:
        made = torch.arange(4)[None].expand(2, 4) + 1
        others = {"of an input": made + given, "drawn": torch.rand_like(made * 1.0), "large": torch.zeros(2**23)}
        assert known.say(made, _ends) is True
        assert {name: known.say(one, _ends) for name, one in others.items()} == dict.fromkeys(others)


@pytest.mark.parametrize(
    "write",
    [
        lambda made, given: made.add_(given),
        lambda made, given: made.__setitem__(1, given[1]),
        lambda made, given: torch.add(given, 1, out=made),
        lambda made, given: made.narrow(0, 0, 2).zero_(),
        lambda made, given: made.view(2, 2).T.masked_fill_(given[:2] == 0, 7),
        lambda made, given: [one.zero_() for one in made.unbind()[:2]],
        lambda made, given: made.detach().chunk(2)[0].zero_(),
        lambda made, given: made.data.narrow(0, 0, 2).zero_(),
        lambda made, given: functional.threshold(made, 2, 0, inplace=True),
    ],
    ids=["in place", "an item", "out", "narrow", "transposed", "unbound", "a chunk", "data", "an option"],
)
def test_what_is_written_into_is_not_known(write: Callable[[Tensor, Tensor], object]) -> None:
    known = KnownValues()
    with known:
        made = torch.arange(4) + 1
        view = made[None]
        write(made, torch.zeros(4, dtype=torch.int64))
        assert known.say(view, _ends) is None


def test_knowing_values_draws_no_numbers() -> None:
    torch.manual_seed(0)
    plain = torch.rand(4)
    torch.manual_seed(0)
    with KnownValues():
        torch.arange(4) + torch.zeros(4)
        assert torch.equal(torch.rand(4), plain)


CLASSES = {"x": torch.randn(6, 4), "labels": torch.tensor([0, 1, 2, 3, 1, 0])}


def of_a_library(how: str = "", name: str = "Checks") -> nn.Module:
    """`Checks`, or another, as a module of a model library."""
    spec = importlib.util.spec_from_file_location("torchvision.checks", bad_models.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: nn.Module = getattr(module, name)(how)
    return made


def test_texts_that_a_library_makes_of_tensors_are_for_people() -> None:
    """As transformers makes them for checks of image tokens; what becomes of other people's is not known."""
    model = of_a_library("told")
    (traced,) = trace(model, CLASSES).module(*CLASSES.values())
    assert torch.equal(traced, model(**CLASSES))
    with pytest.raises(CaptureError, match="is made a text"):
        capture(bad_models.Checks("told"), batch=CLASSES)


def test_checks_of_a_library_that_only_raise_are_passed() -> None:
    model = of_a_library()
    (traced,) = trace(model, CLASSES).module(*CLASSES.values())
    assert torch.equal(traced, model(**CLASSES))
    assert any("as the model does to raise (bad_models.py:" in note for note in capture(model, batch=CLASSES).notes)


@pytest.mark.parametrize("how", ["branch", "caught", "ends", "computes", "returns", "other"])
def test_checks_on_which_more_depends_than_an_error_are_refused(how: str) -> None:
    of_a_library(how)(**CLASSES)
    with pytest.raises(CaptureError, match="Could not guard on data-dependent"):
        capture(of_a_library(how), batch=CLASSES)


def test_numbers_that_a_library_bounds_where_they_are_not_finite_are_taken_for_finite() -> None:
    """The layers stay ops, each row's own, the same in evaluation, where nothing is bounded."""
    model, batch = of_a_library(name="Bounds"), {"x": torch.randn(6, 4)}
    graph = capture(model, batch=batch)
    assert [op.kind for _, op in graph.ops].count("opaque") == 0
    assert not graph.evaluation and graph.loss.reduction != "other"
    assert any("as the model does to bound what is not finite (bad_models.py:" in note for note in graph.notes)
    (traced,) = trace(model, batch).module(*batch.values())
    assert torch.equal(traced, model.train()(**batch))


@pytest.mark.parametrize(("how", "dtype"), [("", torch.float16), ("small", torch.float32), ("counts", torch.float32)])
def test_bounds_that_move_finite_numbers_or_do_more_are_refused(how: str, dtype: torch.dtype) -> None:
    model = of_a_library(how, "Bounds").to(dtype)
    with pytest.raises(CaptureError, match="Could not guard on data-dependent"):
        capture(model, batch={"x": torch.zeros(6, 4, dtype=dtype)})


def test_bounds_of_other_code_are_refused() -> None:
    with pytest.raises(CaptureError, match="Could not guard on data-dependent"):
        capture(bad_models.Bounds(), batch={"x": torch.zeros(6, 4)})


def test_checks_that_other_code_may_catch_are_not_passed() -> None:
    class Suppressing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.own = of_a_library(), nn.Linear(4, 1)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            loss: Tensor = self.own(x).mean()
            with contextlib.suppress(ValueError):
                loss = loss + self.part(x, labels)
            return loss

    assert [op.kind for _, op in capture(Suppressing(), batch=CLASSES).ops].count("opaque") == 1


class _Transcribed(nn.Module):
    """Targets joined end to end, chosen by a mask that is counted as transformers and others do."""

    def __init__(self, counted: str = "mask") -> None:
        super().__init__()
        self.own, self.counted = nn.Linear(4, 6), counted

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        mask = labels > 0
        lengths = mask.long().sum(-1) if self.counted == "mask" else (labels > 1).sum(-1)
        scores = functional.log_softmax(self.own(x), -1).transpose(0, 1)
        sizes = torch.full((x.shape[0],), x.shape[1])
        targets = labels[mask] if self.counted == "mask" else labels.masked_select(mask)
        return functional.ctc_loss(scores, targets, sizes, lengths, zero_infinity=True)


SPOKEN = {"x": torch.randn(4, 9, 4), "labels": torch.tensor([[1, 2, 3], [-100, 5, -100], [4, 4, -100], [2, 0, 1]])}


class Checked(nn.Module):
    """It looks at its input before it takes it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 4), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "asserts":
            assert torch.isfinite(x).all(), "x is not finite"
        elif self.how == "raises":
            if x.min() < -100 or x.max() > 100:
                raise ArithmeticError("x is out of bounds")
        elif x.max() > 100:
            x = x / 100
        made: Tensor = self.layer(x).pow(2).mean()
        return made


@pytest.mark.parametrize(
    ("how", "instead"),
    [("asserts", "does nothing but raise"), ("raises", "does nothing but raise"), ("scales", "torch.where")],
)
def test_what_to_write_in_place_of_a_look_at_values_depends_on_what_it_is_for(how: str, instead: str) -> None:
    with pytest.raises(CaptureError) as refused:
        capture(Checked(how), batch={"x": (6, 4)})
    assert instead in str(refused.value)
    assert ("torch.where" in str(refused.value)) == (how == "scales")


def test_joined_targets_of_a_ctc_loss_stay_rows() -> None:
    model = _Transcribed()
    (traced,) = trace(model, SPOKEN).module(*SPOKEN.values())
    assert torch.allclose(traced, model(**SPOKEN), rtol=1e-6, atol=0)
    assert capture(model, batch=SPOKEN).loss.reduction != "other"


def test_joined_targets_with_lengths_of_their_own_are_refused() -> None:
    with pytest.raises(CaptureError, match="masked_select"):
        capture(_Transcribed("own"), batch=SPOKEN)


@pytest.mark.parametrize("what", ["lengths", "numbers", "mask"])
def test_joined_targets_of_which_something_was_written_since_are_refused(what: str) -> None:
    class Written(_Transcribed):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            mask = labels > 0
            numbers = mask.long()
            if what == "numbers":
                numbers.copy_(numbers.roll(1, 0).clone())
            lengths = numbers.sum(-1)
            if what == "lengths":
                lengths.view(-1)[:2] = lengths[:2].flip(0).clone()
            if what == "mask":
                mask.copy_(mask.roll(1, 0).clone())
            scores = functional.log_softmax(self.own(x), -1).transpose(0, 1)
            sizes = torch.full((x.shape[0],), x.shape[1])
            return functional.ctc_loss(scores, labels[mask], sizes, lengths, zero_infinity=True)

    Written()(**SPOKEN)
    with pytest.raises(CaptureError):
        capture(Written(), batch=SPOKEN)
