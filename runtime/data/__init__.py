"""Training data: `open_data(source, ...)` gives batches by position, so that a resumed run goes on where it stopped.

    source        what a batch is
    synthetic     random values of the model's inputs, seeded by position
    stdlib        text: the sources of Python's own standard library
    a folder      of shards (shards/), of tensors named like the model's inputs (tensors.py), or of text files (text.py)
    a URL         of a folder of shards, such as s3://bucket/folder

A batch is the global batch: every rank gets the same one and the executor takes its rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from placer.errors import UsageError
from placer.graph import Graph
from placer.runtime.data.batches import Batch, Data, synthetic_data, with_constants
from placer.runtime.data.shards.folders import is_url
from placer.runtime.data.shards.samples import shard_data
from placer.runtime.data.shards.shard_set import ShardSet, is_shard_folder
from placer.runtime.data.tensors import tensor_data, tensor_files
from placer.runtime.data.text import stdlib_documents, text_data, text_files, tokenizer_of

__all__ = ["Batch", "Data", "open_data"]


def open_data(source: str, graph: Graph, *, rows: int, seed: int, tokenizer: str = "") -> Data:
    """The data of `source` in batches of `rows` rows for the inputs of `graph`; `tokenizer` is a folder, "" for bytes.
    Inputs that are the same in every step have the values that the graph says.

    Raises UsageError where the folder is missing, holds neither text nor tensors, or does not fit the model's inputs.
    """
    read = replace(graph, inputs=tuple(entry for entry in graph.inputs if entry.values is None))
    return with_constants(_opened(source, read, rows=rows, seed=seed, tokenizer=tokenizer), graph, rows)


def _opened(source: str, graph: Graph, *, rows: int, seed: int, tokenizer: str) -> Data:
    if source == "synthetic":
        return synthetic_data(graph, rows, seed)
    if source == "stdlib":
        return text_data(stdlib_documents(), graph, rows=rows, seed=seed, tokenizer=tokenizer_of(tokenizer))
    folder = Path(source.removeprefix("file://"))
    if not is_url(source) and not folder.is_dir():
        raise UsageError(f"the data {source!r} is no folder; give a folder of text or tensors, stdlib, or synthetic")
    if is_shard_folder(source):
        _require_no_tokenizer(tokenizer, source, "shards")
        return shard_data(ShardSet(source), graph, rows=rows, seed=seed)
    tensors = tensor_files(folder)
    if tensors:
        _require_no_tokenizer(tokenizer, source, "tensors")
        return tensor_data(tensors, graph, rows=rows, seed=seed)
    texts = text_files(folder)
    if texts:
        documents = (path.read_text(errors="replace") for path in texts)
        return text_data(documents, graph, rows=rows, seed=seed, tokenizer=tokenizer_of(tokenizer))
    raise UsageError(
        f"the folder {source} holds no data; put in text (.txt, .md, .rst, .py, .text), "
        "tensors (.pt, .npy, .safetensors), or shards (.tar, .parquet, .tfrecord, placer data pack)"
    )


def _require_no_tokenizer(tokenizer: str, source: str, kind: str) -> None:
    if tokenizer:
        raise UsageError(
            f"--tokenizer {tokenizer} was given, and {source} holds {kind}, which are read as they are; leave it out, "
            "or give a folder of text"
        )
