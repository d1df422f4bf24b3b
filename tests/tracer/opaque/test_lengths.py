"""Parts that take lengths, which may not be 0, are tried on ones; what they give has the same sizes for all numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from placer.errors import UncapturableError
from placer.tracer import capture, trace

pytestmark = pytest.mark.in_turns

ROWS, LONGEST, WIDTH = 6, 5, 4
BATCH = {"words": ((ROWS, LONGEST), "int64"), "lengths": ((ROWS,), "int64")}


class Encoder(nn.Module):
    """As GRU4Rec and Tacotron read texts: packed by their lengths. padded: to how many words."""

    def __init__(self, padded: int | None) -> None:
        super().__init__()
        self.table, self.read, self.padded = nn.Embedding(9, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True), padded

    def forward(self, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = rnn.pack_padded_sequence(self.table(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        made, (last, _) = self.read(packed)
        return rnn.pad_packed_sequence(made, batch_first=True, total_length=self.padded)[0], last[0]


class Reader(nn.Module):
    """Reads texts, and makes a loss of them."""

    def __init__(self, padded: int | None) -> None:
        super().__init__()
        self.encoder, self.out = Encoder(padded), nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        made, last = self.encoder(words, lengths)
        loss: Tensor = self.out(made).square().mean() + self.out(last).mean()
        return loss


def test_an_encoder_of_packed_texts_is_one_part_that_runs_exactly() -> None:
    model = Reader(LONGEST)
    graph = capture(model, batch=BATCH)
    assert any(note.startswith("encoder cannot be exported and is one opaque op") for note in graph.notes)
    words, lengths = torch.randint(9, (ROWS, LONGEST)), torch.tensor([5, 1, 3, 2, 5, 4])
    found, expected = trace(model, graph).module(words, lengths)[0], model(words, lengths)
    weights = tuple(model.parameters())
    assert torch.equal(found, expected)
    for one, other in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.equal(one, other)


def test_a_part_whose_results_are_as_long_as_the_longest_text_is_refused() -> None:
    with pytest.raises(UncapturableError, match=r"encoder is opaque and gives tensors of other sizes.*total_length"):
        capture(Reader(None), batch=BATCH)


class Packed(nn.Module):
    """As NaViT packs images: lengths of plain numbers go through a tensor, and the rows are split by them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = [row[: 2 + at % 3] for at, row in enumerate(x)]
        lengths = torch.tensor([row.shape[0] for row in rows], device=x.device)
        parts = self.drop(self.one(torch.cat(rows))).split(lengths.tolist())
        return torch.stack([part.mean(0) for part in parts])


class Packing(nn.Module):
    """Packs rows in a part, and makes a loss of them."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.out = Packed(), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.out(self.part(x)).square().mean()
        return loss


def test_lengths_that_go_through_a_tensor_make_a_part_and_no_mistake_of_the_models() -> None:
    graph = capture(Packing(), batch={"x": (ROWS, LONGEST, WIDTH)})
    assert any("part cannot be exported and is one opaque op" in note for note in graph.notes)
    assert graph.evaluation == ""  # the part makes the same numbers there, by its own code
