"""Text as training data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from graphs import BlockSpec, chain_graph, gpt_graph
from placer.errors import UsageError
from placer.graph import Affine, Graph, Input, Tensor
from placer.runtime.data import open_data
from placer.runtime.data.text import stdlib_documents
from placer.runtime.training.run_report import ExecuteOptions

LENGTH = 8


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_text("world" * 30)
    (tmp_path / "a.txt").write_text("hello" * 30)
    (tmp_path / "ignored.bin").write_bytes(b"\xff" * 100)
    return tmp_path


def language_model(vocabulary: int = 256) -> Graph:
    return gpt_graph(layers=1, sequence=LENGTH, vocabulary=vocabulary)


def rows_seen(folder: Path, seed: int, batches: int, rows: int = 4) -> list[bytes]:
    data = open_data(str(folder), language_model(), rows=rows, seed=seed)
    return [bytes(row.tolist()) for k in range(batches) for row in data.batch(k)["input_ids"]]


def windows(folder: Path) -> list[bytes]:
    stream = b"".join((folder / name).read_bytes() + b"\0" for name in ("a.txt", "b.txt"))
    return [stream[i : i + LENGTH] for i in range(0, len(stream) - LENGTH + 1, LENGTH)]


def test_an_epoch_visits_every_window_but_the_held_out_ones_once(texts: Path) -> None:
    every = windows(texts)
    held = max(1, len(every) // 20)
    seen = rows_seen(texts, seed=3, batches=len(every) - held, rows=1)
    assert sorted(seen) == sorted(every[:-held])


def test_two_epochs_differ_in_order_and_two_seeds_too(texts: Path) -> None:
    epoch = len(windows(texts)) - 1
    seen = rows_seen(texts, seed=3, batches=2 * epoch, rows=1)
    assert seen[:epoch] != seen[epoch:] and sorted(seen[:epoch]) == sorted(seen[epoch:])
    assert seen[:epoch] != rows_seen(texts, seed=4, batches=epoch, rows=1)


def test_a_batch_depends_on_its_position_alone(texts: Path) -> None:
    first, second = (open_data(str(texts), language_model(), rows=4, seed=1) for _ in range(2))
    for position in range(7):
        first.batch(position)
    assert torch.equal(first.batch(7)["input_ids"], second.batch(7)["input_ids"])


def test_held_out_rows_are_never_trained_on(texts: Path) -> None:
    data = open_data(str(texts), language_model(), rows=2, seed=0)
    held = {bytes(row.tolist()) for k in range(3) for row in data.held_out(k)["input_ids"]}
    assert held == set(windows(texts)[-(len(windows(texts)) // 20 or 1) :])


def test_labels_are_the_tokens_and_masks_are_ones(texts: Path) -> None:
    graph = language_model()
    mask = Input(name="attention_mask", tensor=Tensor(shape=(Affine(0, 1), Affine(LENGTH)), dtype="int64"))
    with_mask = Graph(**{**vars(graph), "inputs": (*graph.inputs, mask)})
    batch = open_data(str(texts), with_mask, rows=3, seed=0).batch(0)
    assert torch.equal(batch["labels"], batch["input_ids"])
    assert torch.equal(batch["attention_mask"], torch.ones(3, LENGTH, dtype=torch.int64))


def test_a_tokenizer_of_a_folder_is_used(texts: Path, tmp_path: Path) -> None:
    (texts / "c.txt").write_text("two words " * 40)
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "two": 1, "words": 2, "</s>": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = open_data(str(texts), language_model(vocabulary=4), rows=1, seed=0, tokenizer=str(tmp_path))
    # a.txt and b.txt are one unknown word and an end each.
    assert sorted(set(data.batch(0)["input_ids"].flatten().tolist())) in ([1, 2], [0, 1, 2, 3])


def test_the_standard_library_is_the_same_text_every_time() -> None:
    first, second = (open_data("stdlib", language_model(), rows=4, seed=0).batch(5)["input_ids"] for _ in range(2))
    assert torch.equal(first, second)
    assert sum(len(text) for text in stdlib_documents()) > 2**20


def test_a_vocabulary_smaller_than_bytes_is_refused(texts: Path) -> None:
    with pytest.raises(UsageError, match=r"bytes has 256 tokens, input input_ids of the model takes 100"):
        open_data(str(texts), language_model(vocabulary=100), rows=1, seed=0)


def test_text_for_a_model_that_reads_numbers_is_refused(texts: Path) -> None:
    with pytest.raises(UsageError, match=r"text cannot fill input x of the model"):
        open_data(str(texts), chain_graph((BlockSpec(),)), rows=1, seed=0)


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("hi")
    with pytest.raises(UsageError, match=r"the text has 3 tokens, the model's sequence has 8"):
        open_data(str(tmp_path), language_model(), rows=1, seed=0)


def test_an_empty_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no data"):
        open_data(str(tmp_path), language_model(), rows=1, seed=0)
    with pytest.raises(UsageError, match="is no folder"):
        open_data(str(tmp_path / "nowhere"), language_model(), rows=1, seed=0)


def test_a_tokenizer_of_what_is_no_text_is_refused(tmp_path: Path) -> None:
    torch.save({"input_ids": torch.zeros(4, 8, dtype=torch.int64)}, tmp_path / "rows.pt")
    with pytest.raises(UsageError, match=r"holds tensors, which are read as they are"):
        open_data(str(tmp_path), language_model(), rows=1, seed=0, tokenizer=str(tmp_path))
    with pytest.raises(UsageError, match=r"synthetic data, which holds no text"):
        ExecuteOptions(tokenizer="words")
    assert ExecuteOptions(tokenizer="words", data="stdlib").tokenizer == "words"


def test_a_missing_tokenizer_is_refused(texts: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no tokenizer at"):
        open_data(str(texts), language_model(), rows=1, seed=0, tokenizer=str(texts / "none"))
