"""Which inputs of a model take text, and what the others are given.

    an integer input with a vocabulary, and the labels    the tokens (a causal language model shifts labels itself)
    ..._mask                                              ones: windows are packed, nothing is padded
    token_type_ids                                        zeros
    position_ids                                          0, 1, 2, ...

An encoder-decoder gets the same tokens on both sides, each cut to its own length. Any other input is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from placer.errors import UsageError
from placer.graph import Graph, Input
from placer.runtime.data.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInputs:
    """The inputs of a model that can be filled from `length` tokens per row."""

    inputs: tuple[Input, ...]
    length: int

    @staticmethod
    def of(graph: Graph) -> TextInputs:
        """The text inputs of `graph`. Raises UsageError naming the first input that text cannot fill."""
        lengths = [_length(entry) for entry in graph.inputs]
        return TextInputs(inputs=graph.inputs, length=max(lengths, default=1))

    def require_vocabulary(self, tokenizer: str, vocabulary: int) -> None:
        """Raise UsageError where the model's vocabulary is smaller than the tokenizer's."""
        for entry in self.inputs:
            if entry.high is not None and _is_text(entry) and entry.high < vocabulary:
                raise UsageError(
                    f"the tokenizer {tokenizer} has {vocabulary} tokens, input {entry.name} of the model takes "
                    f"{entry.high}; give a tokenizer of the model with --tokenizer"
                )

    def fill(self, tokens: torch.Tensor) -> Batch:
        """The model's inputs from `tokens` (rows x length)."""
        return {entry.name: _values(entry, tokens) for entry in self.inputs}


def _length(entry: Input) -> int:
    shape = entry.tensor.shape
    if len(shape) != 2 or shape[1].per_row:
        if _is_mask(entry.name):
            return 1
        raise UsageError(
            f"text cannot fill input {entry.name} of the model: it has {len(shape)} dims, text has rows x tokens; "
            "give --data a folder of tensors, or synthetic"
        )
    if not _is_text(entry) and not _fixed_meaning(entry.name):
        raise UsageError(
            f"text cannot fill input {entry.name} of the model: it holds {entry.tensor.dtype}; "
            "give --data a folder of tensors, or synthetic"
        )
    return shape[1].fixed


def _is_text(entry: Input) -> bool:
    return entry.tensor.dtype in ("int64", "int32") and not _fixed_meaning(entry.name)


def _is_mask(name: str) -> bool:
    return name.endswith("mask")


def _fixed_meaning(name: str) -> bool:
    return _is_mask(name) or name in ("token_type_ids", "position_ids")


def _values(entry: Input, tokens: torch.Tensor) -> torch.Tensor:
    rows = tokens.shape[0]
    shape = entry.tensor.shape_at(rows)
    dtype: torch.dtype = getattr(torch, entry.tensor.dtype)
    if _is_mask(entry.name):
        return torch.ones(shape, dtype=dtype)
    if entry.name == "token_type_ids":
        return torch.zeros(shape, dtype=dtype)
    if entry.name == "position_ids":
        return torch.arange(shape[1]).expand(shape).to(dtype).contiguous()
    return tokens[:, : shape[1]].to(dtype).contiguous()
