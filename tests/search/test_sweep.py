"""`placer sweep`: cells of a grid, errors against published rows, what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from bad_models import squares
from commands import Command, command_in
from placer.api import plan
from placer.plans.settings import RunSettings
from placer.search.sweep import COLUMNS, read_published, read_sweep

pytestmark = pytest.mark.in_turns

GRID = """
models:
  tiny: {model: "bad_models:tiny", batch: 8x32}
machines: {V: v100, K: k80}
networks: {fast: ib-fdr, slow: 1gbe}
counts: [1, 2, 4]
per_node: 2
"""


@pytest.fixture
def placer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "grid.yaml").write_text(GRID)
    return command_in(tmp_path, monkeypatch, capsys)


def row(**fields: object) -> dict[str, object]:
    base: dict[str, object] = {
        "source": "a paper, table 1", "model": "tiny", "framework": "F", "device": "V", "nodes": 1, "gpus_per_node": 1,
        "batch_per_gpu": 8, "precision": "fp32", "network": "fast", "data": "synthetic", "value": 100.0,
        "unit": "images/s total",
    }  # fmt: skip
    return base | fields


def write_rows(*rows: dict[str, object]) -> None:
    with Path("rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def test_every_cell_of_the_grid_is_the_plan_of_its_machines(placer: Command) -> None:
    document = json.loads(placer("sweep", "grid.yaml", "--json").out)
    cells = {(one["machine"], one["network"], one["devices"]): one for one in document["cells"]}
    alone = {(machine, "", count) for machine in "VK" for count in (1, 2)}
    assert set(cells) == alone | {(machine, network, 4) for machine in "VK" for network in ("fast", "slow")}
    made = plan(
        "bad_models:tiny", "v100x2*2@1gbe", batch="32x32", strategy="data",
        settings=RunSettings(batch_norm="microbatch"),
    )  # fmt: skip
    assert made.ledger is not None
    assert cells["V", "slow", 4]["predicted_rows_per_second"] == pytest.approx(made.ledger.rows_per_second)
    assert cells["V", "fast", 4]["speedup"] > cells["V", "slow", 4]["speedup"]
    assert document["errors"] == []


def test_a_model_without_a_loss_is_given_one(placer: Command) -> None:
    asked = "{model: 'bad_models:dense', batch: 'x=8x64', loss: 'bad_models:squares'}"
    Path("grid.yaml").write_text(GRID.replace('{model: "bad_models:tiny", batch: 8x32}', asked))
    cells = json.loads(placer("sweep", "grid.yaml", "--json").out)["cells"]
    made = plan(
        "bad_models:dense", "v100x2", batch="x=16x64", strategy="data", settings=RunSettings(batch_norm="microbatch"),
        loss_fn=squares,  # type: ignore[arg-type]  # typed as people type it
    )  # fmt: skip
    assert made.ledger is not None
    two = next(one for one in cells if one["machine"] == "V" and one["devices"] == 2)
    assert two["predicted_rows_per_second"] == pytest.approx(made.ledger.rows_per_second)


def test_published_rows_stand_beside_their_predictions_with_the_error_of_each(placer: Command) -> None:
    write_rows(
        row(value=100), row(nodes=2, gpus_per_node=2, value=300), row(model="other"), row(device="H"),
        row(precision="fp16"), row(nodes=2, gpus_per_node=2, network="carrier pigeons"), row(batch_per_gpu=16),
        row(unit="s/iteration"), row(data="ImageNet (real)"), row(framework="G", value=50),
    )  # fmt: skip
    ended = placer("sweep", "grid.yaml", "--published", "rows.csv", "-o", "out.csv", "--json")
    document = json.loads(ended.out)
    assert document["published_rows_left_out"] == 7
    one, four, other = document["cells"]
    assert one["error"] == pytest.approx(one["predicted_rows_per_second"] / 100 - 1)
    assert four["published_speedup"] == pytest.approx(3)
    first, second = document["errors"]
    assert (first["framework"], first["rows"], second["framework"], second["rows"]) == ("F", 2, "G", 1)
    assert first["mape"] == pytest.approx((abs(one["error"]) + abs(four["error"])) / 2)
    assert first["speedup_mape"] == pytest.approx(abs(four["speedup"] / 3 - 1))
    assert second["mape"] == pytest.approx(abs(other["error"]))
    assert second["speedup_mape"] is None
    written = list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))
    assert [float(line["error"]) for line in written] == pytest.approx([one["error"], four["error"], other["error"]])
    text = placer("sweep", "grid.yaml", "--published", "rows.csv").out
    assert "7 published rows lie outside of the grid" in text


def test_what_does_not_fit_says_why(placer: Command) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 24576, "n_layer": 1, "n_head": 16}
    Path("large.json").write_text(json.dumps(config))
    Path("grid.yaml").write_text(GRID.replace("bad_models:tiny", "large.json").replace("[1, 2, 4]", "[1]"))
    ended = placer("sweep", "grid.yaml")
    assert ended.code == 0
    assert "no plan: tiny on K: memory on device 0" in ended.out
    cells = json.loads(placer("sweep", "grid.yaml", "--json").out)["cells"]
    assert [one["predicted_rows_per_second"] for one in cells] == [None, None]


def test_a_sweep_is_drawn(placer: Command) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs placer-planner[plot]")
    write_rows(row(value=100), row(nodes=2, gpus_per_node=2, value=300))
    assert placer("sweep", "grid.yaml", "--published", "rows.csv", "--plot", "out.svg").code == 0
    assert "tiny" in Path("out.svg").read_text()


@pytest.mark.parametrize("name", ["out.txt", "out", "-"])
def test_a_picture_of_no_known_kind_is_refused_before_anything_is_predicted(placer: Command, name: str) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs placer-planner[plot]")
    ended = placer("sweep", "grid.yaml", "-o", "cells.csv", "--plot", name)
    assert ended.code == 2 and ".svg, .png, .pdf" in ended.error
    assert not Path("cells.csv").exists() and not Path(name).exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GRID.replace("k80", "k8"), "line 4: 'k8' is no device of the catalogue; did you mean k80"),
        (GRID.replace("8x32}", "8x32, loss: 'bad_models:none'}"), "has no function 'none'"),
        (GRID.replace("1gbe", "string"), "is no network of the catalogue"),
        (GRID.replace("[1, 2, 4]", "[3]"), "whole nodes of 2"),
        (GRID.replace("[1, 2, 4]", "[]"), "counts"),
        (GRID.replace("batch: 8x32", "bach: 8x32"), "did you mean batch"),
        (GRID + "precisions: [float31]\n", "precisions"),
        ("", "an empty file"),
    ],
)
def test_a_sweep_that_is_wrong_is_refused(placer: Command, text: str, said: str) -> None:
    Path("grid.yaml").write_text(text)
    ended = placer("sweep", "grid.yaml")
    assert ended.code == 2
    assert said in ended.error


def test_published_rows_that_are_wrong_are_refused(placer: Command) -> None:
    Path("rows.csv").write_text("a,b\n1,2\n")
    assert "lacks the columns source" in placer("sweep", "grid.yaml", "--published", "rows.csv").error
    write_rows(row(), row(value="fast"))
    assert "rows.csv, line 3" in placer("sweep", "grid.yaml", "--published", "rows.csv").error
    write_rows(row(model="none"))
    assert "no published row lies in the grid" in placer("sweep", "grid.yaml", "--published", "rows.csv").error
    assert "--only names 'x'" in placer("sweep", "grid.yaml", "--only", "x").error
    assert placer("sweep", "none.yaml").code == 2


def test_every_published_row_of_the_345_runs_lies_in_the_grid(checkout: Path, shared: Path) -> None:
    path = shared / "facts" / "csv" / "azure_horovod_345.csv"
    if not path.exists():
        pytest.skip(f"the published rows {path} are not on this machine")
    rows, left = read_published(str(path), read_sweep(str(checkout / "examples" / "sweep" / "azure.yaml")))
    assert (len(rows), left) == (366, 0)
    assert sum(one.source.endswith("/BatchAIHorovodBenchmark") for one in rows) == 345
