"""Folders of tensors as training data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from graphs import BlockSpec, chain_graph, gpt_graph
from placer.api import capture
from placer.errors import UsageError
from placer.graph import Graph
from placer.runtime.data import open_data
from placer.runtime.data.batches import without_numbers

WIDTH = 16  # of the input `x` of a chain graph
ROWS = torch.arange(40 * WIDTH, dtype=torch.float32).reshape(40, WIDTH)


@pytest.fixture
def chain() -> Graph:
    return chain_graph((BlockSpec(),))


def numpy_files(folder: Path) -> None:
    numpy.save(folder / "x-00001.npy", ROWS[:25].numpy())
    numpy.save(folder / "x-00002.npy", ROWS[25:].numpy())


def torch_files(folder: Path) -> None:
    torch.save({"x": ROWS[:10].clone()}, folder / "1.pt")
    torch.save({"x": ROWS[10:].clone(), "other": torch.ones(2)}, folder / "2.pt")


def safetensors_files(folder: Path) -> None:
    save_file({"x": ROWS}, folder / "all.safetensors")


@pytest.mark.parametrize("write", [numpy_files, torch_files, safetensors_files])
def test_every_row_but_the_held_out_ones_comes_once_an_epoch(write: object, tmp_path: Path, chain: Graph) -> None:
    assert callable(write)
    write(tmp_path)
    data = open_data(str(tmp_path), chain, rows=2, seed=5)
    seen = torch.cat([data.batch(k)["x"] for k in range(19)])
    assert torch.equal(seen[seen[:, 0].argsort()], ROWS[:38])
    assert torch.equal(data.held_out(0)["x"], ROWS[38:])


# Rows per piece, by file name; 40 in all.
TWELVE = {f"x-{number}.npy": 3 for number in range(1, 13)} | {"x-13.npy": 4}


@pytest.mark.parametrize(
    "labels", [{f"y-{number:02d}.npy": 3 for number in range(1, 13)} | {"y-13.npy": 4}, {"y.npy": 40}]
)
def test_pieces_come_in_order_of_their_numbers_whatever_their_names(labels: dict[str, int], tmp_path: Path) -> None:
    for name, rows in (TWELVE | labels).items():
        save_rows(tmp_path / name, rows, [*TWELVE] if name in TWELVE else [*labels])
    batch = open_data(str(tmp_path), two_inputs(), rows=38, seed=3).batch(0)
    assert torch.equal(batch["x"], batch["y"]) and len({*batch["x"][:, 0].tolist()}) == 38


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"x-1.npy": 20, "x-2.npy": 20, "y-1.npy": 10, "y-2.npy": 30},
            "piece 1 of x has 20 rows, that of y has 10 rows",
        ),
        (
            {"x-1.npy": 20, "x-2.npy": 20, "y-2.npy": 20, "y-3.npy": 20},
            "piece 1 of x has 20 rows, that of y is missing",
        ),
        (
            {"x-1.npy": 20, "x-3.npy": 20, "y.npy": 40},
            "pieces 1 to 3 of x but none with the number 2, and all rows of y",
        ),
        ({"x-1.npy": 20, "x-01.npy": 20, "y.npy": 40}, "which piece of x comes first .* x-01.npy, x-1.npy; give each"),
        ({"x-1.npy": 20, "x.npy": 20, "y.npy": 40}, "which piece of x comes first .* x-1.npy, x.npy; give each"),
    ],
)
def test_pieces_that_do_not_go_together_are_refused(files: dict[str, int], said: str, tmp_path: Path) -> None:
    for name, rows in files.items():
        numpy.save(tmp_path / name, ROWS[:rows].numpy())
    with pytest.raises(UsageError, match=said):
        open_data(str(tmp_path), two_inputs(), rows=1, seed=0)


def save_rows(path: Path, rows: int, names: list[str]) -> None:
    """The rows of the piece that `path` is of `names`, which all but the last have the same rows."""
    first = names.index(path.name) * 3
    numpy.save(path, ROWS[first : first + rows].numpy())


def two_inputs() -> Graph:
    """Of which `y` is as `x`."""
    graph = chain_graph((BlockSpec(),))
    (entry,) = graph.inputs
    return replace(graph, inputs=(entry, replace(entry, name="y")))


def test_values_take_the_type_of_the_models_input(tmp_path: Path, chain: Graph) -> None:
    numpy.save(tmp_path / "x.npy", ROWS.numpy().astype(numpy.float64))
    assert open_data(str(tmp_path), chain, rows=1, seed=0).batch(0)["x"].dtype == torch.float32


def test_fractions_where_the_model_takes_integers_are_refused(tmp_path: Path) -> None:
    graph = gpt_graph()
    for entry in graph.inputs:
        numpy.save(tmp_path / f"{entry.name}.npy", numpy.zeros(entry.tensor.shape_at(4), numpy.float32))
    with pytest.raises(UsageError, match="holds float32, the model takes int64"):
        open_data(str(tmp_path), graph, rows=1, seed=0)


def test_fewer_rows_than_a_batch_are_said(tmp_path: Path, chain: Graph) -> None:
    numpy.save(tmp_path / "x.npy", ROWS[:2].numpy())
    assert (
        "only 1 to train on, which repeat within each batch of 8"
        in open_data(str(tmp_path), chain, rows=8, seed=0).name
    )
    assert open_data(str(tmp_path), chain, rows=1, seed=0).name == "tensors, 2 rows, the last 1 held out for evaluation"


def test_inputs_of_a_batch_that_are_no_numbers_are_named_with_their_row() -> None:
    batch = {"x": torch.ones(4, 3), "scale": torch.tensor(1.0), "labels": torch.arange(4)}
    assert without_numbers(batch) == ""
    batch["x"][2, 1], batch["scale"] = torch.nan, torch.tensor(torch.nan)
    assert without_numbers(batch) == "x (row 2), scale (row 0)"
    masked = torch.tensor([0.0, -torch.inf])  # what leaves out, in a mask, is meant
    assert without_numbers({"mask": masked}) == ""


def test_rows_that_are_only_evaluated_are_said(tmp_path: Path, chain: Graph) -> None:
    numpy.save(tmp_path / "x.npy", ROWS.numpy())
    few = open_data(str(tmp_path), chain, rows=8, seed=0).name
    assert few == "tensors, 40 rows, the last 2 held out for evaluation, where they repeat within a batch of 8"
    assert open_data(str(tmp_path), chain, rows=2, seed=0).name == few.partition(", where")[0]
    numpy.save(tmp_path / "x.npy", ROWS[:1].numpy())
    assert open_data(str(tmp_path), chain, rows=1, seed=0).name == "tensors, 1 rows"


def test_a_shape_that_does_not_fit_names_the_file(tmp_path: Path, chain: Graph) -> None:
    numpy.save(tmp_path / "x.npy", numpy.zeros((4, 3)))
    with pytest.raises(UsageError, match=r"x\.npy: x has shape \(4, 3\), the model takes rows x \(16,\)"):
        open_data(str(tmp_path), chain, rows=1, seed=0)


def test_a_missing_input_is_named(tmp_path: Path, chain: Graph) -> None:
    torch.save({"y": ROWS}, tmp_path / "1.pt")
    with pytest.raises(UsageError, match=r"1\.pt has no tensor 'x'.*it holds: y"):
        open_data(str(tmp_path), chain, rows=1, seed=0)


def test_what_no_input_is_may_be_anything_and_inputs_are_tensors(tmp_path: Path, chain: Graph) -> None:
    torch.save({"x": ROWS}, tmp_path / "1.pt")
    plain = open_data(str(tmp_path), chain, rows=1, seed=0).batch(0)["x"]
    torch.save({"x": ROWS, "names": ["a"] * len(ROWS), 3: None}, tmp_path / "1.pt")
    assert torch.equal(open_data(str(tmp_path), chain, rows=1, seed=0).batch(0)["x"], plain)
    torch.save({"x": ROWS.tolist()}, tmp_path / "1.pt")
    with pytest.raises(UsageError, match=r"1\.pt: x is a list; write it as a dense tensor, a row each"):
        open_data(str(tmp_path), chain, rows=1, seed=0)


def test_a_file_that_is_no_tensor_is_refused_without_running_it(tmp_path: Path, chain: Graph) -> None:
    (tmp_path / "1.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UsageError, match=r"1\.pt cannot be read as tensors"):
        open_data(str(tmp_path), chain, rows=1, seed=0)


def test_a_label_beyond_the_models_range_is_named(tmp_path: Path) -> None:
    graph = gpt_graph(layers=1, sequence=4, vocabulary=10)
    tokens = numpy.full((6, 4), 10)
    numpy.save(tmp_path / "input_ids.npy", tokens)
    numpy.save(tmp_path / "labels.npy", tokens)
    with pytest.raises(UsageError, match=r"input input_ids holds 10, the model takes less than 10"):
        open_data(str(tmp_path), graph, rows=1, seed=0).batch(0)


def token_files(folder: Path, tokens: object, labels: object) -> Graph:
    numpy.save(folder / "input_ids.npy", numpy.asarray(tokens))
    numpy.save(folder / "labels.npy", numpy.asarray(labels))
    return gpt_graph(layers=1, sequence=4, vocabulary=10)


@pytest.mark.parametrize("kind", [numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64])
def test_unsigned_tokens_are_read(kind: type[numpy.generic], tmp_path: Path) -> None:
    tokens = numpy.full((6, 4), 9)
    batch = open_data(str(tmp_path), token_files(tmp_path, tokens.astype(kind), tokens), rows=2, seed=0).batch(0)
    assert torch.equal(batch["input_ids"], torch.full((2, 4), 9))


def test_labels_that_do_not_count_may_be_negative_and_tokens_may_not(tmp_path: Path) -> None:
    tokens = numpy.full((6, 4), 3)
    graph = token_files(tmp_path, tokens, numpy.full((6, 4), -100))
    assert torch.equal(open_data(str(tmp_path), graph, rows=2, seed=0).batch(0)["labels"], torch.full((2, 4), -100))
    for name, made in (("labels", (tokens, -tokens)), ("input_ids", (-tokens, tokens))):
        graph = token_files(tmp_path, *made)
        with pytest.raises(UsageError, match=rf"{name}\.npy: input {name} holds -3, .* no number below 0"):
            open_data(str(tmp_path), graph, rows=2, seed=0).batch(0)


class Columns(nn.Module):
    """Two tables, each for a column of `kinds`, whose third column is a number; two labels, of heads of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.filled = nn.Embedding(9, 4), nn.Embedding(3, 4), nn.Embedding(5, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 6), nn.Linear(4, 2)])

    def forward(self, kinds: torch.Tensor, gaps: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> object:
        hidden = self.wide(kinds[:, 0]) + self.narrow(kinds[:, 1]) + kinds[:, 2, None] / 2000
        hidden = hidden + self.filled(gaps.masked_fill(gaps == -1, 0))
        return sum(
            functional.cross_entropy(head(hidden), labels, ignore_index=-1)
            for head, labels in zip(self.heads, (first, second), strict=True)
        )


def test_each_column_is_held_to_the_table_that_it_indexes(tmp_path: Path) -> None:
    graph = capture(
        Columns(), batch=dict.fromkeys(("gaps", "first", "second"), ((4,), "int64")) | {"kinds": ((4, 3), "int64")}
    )
    good = {
        "kinds": torch.tensor([[8, 2, 2024]] * 4),
        "gaps": torch.tensor([-1, 4, 0, -1]),
        "first": torch.tensor([-1, 5, 0, 1]),
        "second": torch.tensor([-1, 1, 0, -1]),
    }
    torch.save(good, tmp_path / "1.pt")
    assert torch.equal(open_data(str(tmp_path), graph, rows=1, seed=0).batch(0)["kinds"], good["kinds"][:1])
    for wrong, said in (
        ({"kinds": torch.tensor([[8, 3, 2024]] * 4)}, "kinds holds 3 .1 to 1 of dim 1., the model takes less than 3"),
        ({"kinds": torch.tensor([[9, 2, 2024]] * 4)}, "kinds holds 9 .0 to 0 of dim 1., the model takes less than 9"),
        ({"second": torch.full((4,), 2)}, "second holds 2, the model takes less than 2 and no number below 0 but -1"),
    ):
        torch.save(good | wrong, tmp_path / "1.pt")
        with pytest.raises(UsageError, match=said):
            open_data(str(tmp_path), graph, rows=1, seed=0).batch(0)


def test_times_are_refused(tmp_path: Path) -> None:
    graph = token_files(tmp_path, numpy.zeros((6, 4), "datetime64[s]"), numpy.zeros((6, 4), int))
    with pytest.raises(UsageError, match=r"input_ids\.npy holds no numbers that torch knows: .*datetime64.*integers"):
        open_data(str(tmp_path), graph, rows=2, seed=0)


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**64 - 1])
def test_every_seed_that_a_plan_takes_orders_data(seed: int, tmp_path: Path, chain: Graph) -> None:
    safetensors_files(tmp_path)
    for source in (str(tmp_path), "synthetic"):
        data = open_data(source, chain, rows=2, seed=seed)
        assert not torch.equal(data.batch(0)["x"], data.batch(1)["x"]) and data.held_out(1)["x"].shape == (2, WIDTH)


def test_synthetic_batches_differ_by_position_and_repeat_by_seed() -> None:
    graph = gpt_graph(layers=1)
    first, second = (open_data("synthetic", graph, rows=2, seed=1) for _ in range(2))
    assert torch.equal(first.batch(3)["input_ids"], second.batch(3)["input_ids"])
    assert not torch.equal(first.batch(3)["input_ids"], first.batch(4)["input_ids"])
    assert not torch.equal(first.batch(3)["input_ids"], first.held_out(3)["input_ids"])
