"""Text as training data: documents -> tokens -> windows of the model's sequence length -> the model's inputs.

All documents in order of their path form one stream of tokens, each document ended by the tokenizer's end token; the
stream is cut into windows without overlap (packing: no padding), and the last incomplete window is dropped.

What an input is given:

    an integer input with a vocabulary, and the labels    the tokens (a causal language model shifts labels itself)
    ..._mask                                              ones: windows are packed, nothing is padded
    token_type_ids                                        zeros
    position_ids                                          0, 1, 2, ...

An encoder-decoder gets the same tokens on both sides, each cut to its own length. Any other input is an error.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy
import torch
from tokenizers import Tokenizer as Loaded

from placer.errors import UsageError
from placer.graph import Graph, Input
from placer.runtime.data.batches import Batch, Data, SampleOrder

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".text")
STDLIB_BYTES = 2 * 2**20  # enough for some thousand windows of a demo, read and packed in well under a second

Tokens = numpy.ndarray[tuple[int], numpy.dtype[numpy.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Text to token numbers. name: for the log. vocabulary: one more than the largest number. encode: the tokens of a
    document, its end token included."""

    name: str
    vocabulary: int
    encode: Callable[[str], Tokens]


#: Each byte of UTF-8 is a token; byte 0, which text does not hold, ends a document.
BYTES = Tokenizer(
    name="bytes",
    vocabulary=256,
    encode=lambda text: numpy.frombuffer(text.encode() + b"\0", dtype=numpy.uint8).astype(numpy.int32),
)

# How the tokenizers of GPT-2, Llama 2, Llama 3, Qwen, T5 and BERT call the end of a document, in order of preference.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "[SEP]")


def _trained(path: Path) -> Tokenizer:
    """A tokenizer.json; documents end with the end token where its vocabulary has a known one."""
    loaded = Loaded.from_file(str(path))
    ends = (number for token in END_TOKENS if (number := loaded.token_to_id(token)) is not None)
    end = list(islice(ends, 1))

    def encode(text: str) -> Tokens:
        return numpy.array([*loaded.encode(text, add_special_tokens=False).ids, *end], dtype=numpy.int32)

    return Tokenizer(name=path.parent.name, vocabulary=loaded.get_vocab_size(), encode=encode)


def tokenizer_of(path: str) -> Tokenizer:
    """The tokenizer of a folder or tokenizer.json; bytes for "". Raises UsageError where there is none."""
    if not path:
        return BYTES
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UsageError(f"there is no tokenizer at {path}: {file} does not exist; give a folder with a tokenizer.json")
    return _trained(file)


def text_files(folder: Path) -> tuple[Path, ...]:
    """The text files of `folder` and its subfolders, in order of their path."""
    return tuple(sorted(path for path in folder.rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file()))


def stdlib_documents() -> Iterator[str]:
    """Sources of Python's standard library in order of their names, up to about STDLIB_BYTES."""
    left = STDLIB_BYTES
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(errors="replace")
        yield text
        left -= len(text)
        if left < 0:
            return
    if left == STDLIB_BYTES:
        raise UsageError("this Python has no standard library sources; give --data a folder of text files")


def text_data(documents: Iterable[str], graph: Graph, *, rows: int, seed: int, tokenizer: Tokenizer) -> Data:
    """Windows of text as the integer inputs of a language model. Raises UsageError for an input text cannot fill."""
    length = _text_length(graph)
    _require_vocabulary(graph, tokenizer.name, tokenizer.vocabulary)
    windows = _windows(documents, tokenizer, length)

    def gather(samples: list[int]) -> Batch:
        return _filled(graph, torch.from_numpy(windows[samples].astype(numpy.int64)))

    name = f"text, {len(windows)} windows of {length} tokens ({tokenizer.name})"
    return SampleOrder(len(windows), rows, seed).data(name, gather)


def _windows(
    documents: Iterable[str], tokenizer: Tokenizer, length: int
) -> numpy.ndarray[tuple[int, int], numpy.dtype[numpy.int32]]:
    """Windows x length tokens."""
    parts = [tokenizer.encode(document) for document in documents]
    stream = numpy.concatenate(parts) if parts else numpy.zeros(0, numpy.int32)
    count = len(stream) // length
    if not count:
        raise UsageError(
            f"the text has {len(stream)} tokens, the model's sequence has {length}; "
            "give more text or a shorter sequence"
        )
    return stream[: count * length].reshape(count, length)


def _text_length(graph: Graph) -> int:
    """The tokens of a row. Raises UsageError naming the first input of `graph` that text cannot fill."""
    return max(map(_length, graph.inputs), default=1)


def _require_vocabulary(graph: Graph, tokenizer: str, vocabulary: int) -> None:
    """Raise UsageError where the model's vocabulary is smaller than the tokenizer's."""
    for entry in graph.inputs:
        if entry.high is not None and _is_text(entry) and entry.high < vocabulary:
            raise UsageError(
                f"the tokenizer {tokenizer} has {vocabulary} tokens, input {entry.name} of the model takes "
                f"{entry.high}; give a tokenizer of the model with --tokenizer"
            )


def _filled(graph: Graph, tokens: torch.Tensor) -> Batch:
    """The model's inputs from `tokens` (rows x length)."""
    return {entry.name: _values(entry, tokens) for entry in graph.inputs}


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
