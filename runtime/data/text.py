"""Text as training data: documents -> tokens -> windows of the model's sequence length.

All documents in order of their path form one stream of tokens, each document ended by the tokenizer's end token; the
stream is cut into windows without overlap (packing: no padding), and the last incomplete window is dropped.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy
import torch
from tokenizers import Tokenizer as Loaded

from placer.errors import UsageError
from placer.graph import Graph
from placer.runtime.data.batches import Batch, SampleOrder
from placer.runtime.data.text_inputs import TextInputs

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".text")
STDLIB_BYTES = 2 * 2**20  # enough for some thousand windows of a demo, read and packed in well under a second

Tokens = numpy.ndarray[tuple[int], numpy.dtype[numpy.int32]]


class Tokenizer(Protocol):
    """Text to token numbers."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    @property
    def vocabulary(self) -> int:
        """One more than the largest token number."""
        ...

    def encode(self, text: str) -> Tokens:
        """The tokens of a document, its end token included."""
        ...


class Bytes:
    """Each byte of UTF-8 is a token; byte 0, which text does not hold, ends a document."""

    name = "bytes"
    vocabulary = 256

    def encode(self, text: str) -> Tokens:
        """The bytes of `text` and a 0."""
        return numpy.frombuffer(text.encode() + b"\0", dtype=numpy.uint8).astype(numpy.int32)


class Trained:
    """A tokenizer.json, or a folder with one as Hugging Face saves it."""

    def __init__(self, path: Path) -> None:
        self._loaded = Loaded.from_file(str(path))
        self.name = str(path.parent.name)
        self.vocabulary = self._loaded.get_vocab_size()
        self._end = next(
            (number for token in END_TOKENS if (number := self._loaded.token_to_id(token)) is not None), None
        )

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, and the end token where the vocabulary has a known one."""
        numbers = self._loaded.encode(text, add_special_tokens=False).ids
        return numpy.array(numbers if self._end is None else [*numbers, self._end], dtype=numpy.int32)


# How the tokenizers of GPT-2, Llama 2, Llama 3, Qwen, T5 and BERT call the end of a document, in order of preference.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "[SEP]")


def tokenizer_of(path: str) -> Tokenizer:
    """The tokenizer of a folder or tokenizer.json; bytes for "". Raises UsageError where there is none."""
    if not path:
        return Bytes()
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UsageError(f"there is no tokenizer at {path}: {file} does not exist; give a folder with a tokenizer.json")
    return Trained(file)


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


class TextData:
    """Windows of text as the integer inputs of a language model."""

    def __init__(
        self, documents: Iterable[str], graph: Graph, *, rows: int, seed: int, tokenizer: Tokenizer | None = None
    ) -> None:
        chosen = tokenizer or Bytes()
        self._inputs = TextInputs.of(graph)
        self._inputs.require_vocabulary(chosen.name, chosen.vocabulary)
        self._windows = _windows(documents, chosen, self._inputs.length)
        self._order = SampleOrder(len(self._windows), rows, seed)
        self.name = (
            f"text, {len(self._windows)} windows of {self._inputs.length} tokens ({chosen.name}){self._order.note}"
        )

    def batch(self, position: int) -> Batch:
        """The training batch at `position`."""
        return self._fill(self._order.training(position))

    def held_out(self, position: int) -> Batch:
        """The evaluation batch at `position`."""
        return self._fill(self._order.evaluation(position))

    def _fill(self, samples: list[int]) -> Batch:
        return self._inputs.fill(torch.from_numpy(self._windows[samples].astype(numpy.int64)))


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
