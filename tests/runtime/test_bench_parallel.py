"""`placer bench parallel`: synchronous ways train as one process does, what cannot run says why, turns are kept."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from placer.cli import main
from placer.report.bench.parallel_analysis import analysis
from placer.report.bench.parallel_rows import Compares, Row, rows_of
from placer.report.bench.parallel_table import agreement, parallel_csv, parallel_markdown
from placer.report.bench.turns import Turn, keep
from placer.runtime.bench.parallel import REFERENCE, WAYS
from placer.runtime.bench.parallel.models import accuracy, classifier, pictures
from placer.runtime.bench.parallel.tensorflow_ops import Graph
from placer.runtime.bench.parallel.torch_ways import sgd
from placer.runtime.distributed.mpi.started import installed, mpirun

pytestmark = pytest.mark.in_turns

TINY = ("--models", "transformer", "--processes", "2", "--rows", "2", "--rounds", "2", "--steps", "2", "--epochs", "1",
        "--samples", "8")  # fmt: skip
FOUR = "DDP,FSDP2,parameter server,placer,local SGD,DDP over MPI,ring all-reduce over MPI"


def run(*arguments: str) -> None:
    sys.argv = ["placer", "bench", "parallel", *arguments]
    with contextlib.suppress(SystemExit):
        main()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run: turns.jsonl, rows.csv, table.md, page.html."""
    folder = tmp_path_factory.mktemp("parallel")
    before = sys.argv
    files = ("--turns", "turns.jsonl", "--csv", "rows.csv", "--markdown", "table.md", "--html", "page.html")
    places = [str(folder / word) if "." in word else word for word in files]
    run(*TINY, "--ways", FOUR, *places)
    sys.argv = before
    return folder


def test_synchronous_ways_agree_and_others_do_not(ran: Path) -> None:
    rows = {row["way"]: row for row in csv.DictReader((ran / "rows.csv").read_text().splitlines())}
    assert {"one process", "DDP", "FSDP2", "parameter server", "placer"} <= rows.keys()
    for way in ("one process", "DDP", "FSDP2", "parameter server", "placer"):
        assert rows[way]["losses_agree"] == "agree" and float(rows[way]["losses_apart"]) < 1e-4
    # The check is none if it cannot fail: processes that tell each other nothing are seen, and local SGD is.
    assert float(rows["no communication"]["losses_apart"]) > 1e-3
    assert float(rows["local SGD"]["losses_apart"]) > 1e-4
    assert rows["local SGD"]["losses_agree"] == "own"


def test_every_way_has_its_figures_or_its_reason(ran: Path) -> None:
    rows = {row["way"]: row for row in csv.DictReader((ran / "rows.csv").read_text().splitlines())}
    assert float(rows["DDP"]["step_seconds_median"]) > 0 and rows["DDP"]["exposed_seconds_median"]
    assert len(rows["placer"]["accuracies"].split()) == 1 and len(rows["placer"]["epoch_seconds"].split()) == 1
    assert rows["placer"]["accuracies"] == rows["one process"]["accuracies"]
    for way in ("DDP over MPI", "ring all-reduce over MPI"):
        if installed() and mpirun():
            assert rows[way]["losses_agree"] == "agree" and float(rows[way]["step_seconds_median"]) > 0
        else:
            assert "pip install 'placer-planner[mpi]'" in rows[way]["reason"] and not rows[way]["step_seconds_median"]


def test_the_page_and_the_markdown_hold_table_and_analysis(ran: Path) -> None:
    page, table = (ran / "page.html").read_text(), (ran / "table.md").read_text()
    assert "accuracy on held-out pictures" in page and "exposed communication" in page
    assert "Losses of all synchronous ways are those of one process" in table and "| parameter server |" in table


def test_a_bench_goes_on_where_it_was(
    ran: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    lines = (ran / "turns.jsonl").read_text().splitlines()
    kept = [line for line in lines if not json.loads(line)["reason"]]
    again = ran / "again.jsonl"
    again.write_text("".join(f"{line}\n" for line in kept) + '{"model": "trans')
    run(*TINY, "--ways", "DDP,FSDP2,parameter server,placer,local SGD", "--turns", str(again), "--json")
    told = capsys.readouterr()
    assert told.err == "" and len(json.loads(told.out)["rows"]) == 7
    assert again.read_text().splitlines() == kept


def test_a_missing_module_is_a_row_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    hidden = ("horovod", "tensorflow", "deepspeed")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in hidden else find(name, *more))
    monkeypatch.setattr(sys, "argv", [])
    names = [one.name for one in WAYS if one.module in hidden]
    run("--models", "transformer", "--processes", "1", "--rows", "1", "--rounds", "1", "--steps", "1", "--epochs", "0",
        "--ways", ",".join(names), "--json")  # fmt: skip
    told = capsys.readouterr()
    assert '"rows"' in told.out, told
    rows = {row["way"]: row for row in json.loads(told.out)["rows"]}
    assert set(names) <= rows.keys() and len(names) == 6
    assert all("is not installed" in rows[name]["reason"] and rows[name]["step_seconds"] is None for name in names)


def turns() -> list[Turn]:
    made = []
    for ranks in (1, 2):
        for number in range(3):
            for way, seconds in (("one process", 0.3), ("no communication", 0.1), ("DDP", 0.1 + 0.02 * ranks)):
                made.append(
                    Turn(
                        model="m", way=way, ranks=ranks, round=number, rows=8 * ranks, step_seconds=seconds,
                        losses=(2.0, 1.5), total_seconds=1.0,
                    )
                )  # fmt: skip
    return made


COMPARES = [Compares(name=REFERENCE), Compares(name="no communication", agrees=False),
            Compares(name="DDP", without="no communication")]  # fmt: skip


def row(found: list[Row], way: str, ranks: int) -> Row:
    return next(one for one in found if (one.way, one.ranks) == (way, ranks))


def test_rows_are_the_arithmetic_of_turns() -> None:
    two = row(rows_of(turns(), COMPARES, REFERENCE), "DDP", 2)
    assert two.step and two.exposed and two.speed_up
    assert two.step.value == pytest.approx(0.14) and two.exposed.value == pytest.approx(0.14 - 0.1)
    assert two.speed_up.value == pytest.approx((16 / 0.14) / (8 / 0.12))
    assert two.total_seconds == 3.0 and two.apart == 0.0


def test_a_way_whose_loss_is_off_is_found_and_named() -> None:
    made = turns()
    made[5] = replace(made[5], losses=(2.0, 1.6))
    found = rows_of(made, COMPARES, REFERENCE)
    assert [one.way for one in found if one.wrong] == ["DDP"]
    assert agreement(next(one for one in found if one.wrong)).startswith("differ by")
    assert analysis(found, REFERENCE)[0] == "Losses differ from those of one process: DDP (m on 1)"
    made[5] = replace(made[5], losses=(2.0, float("nan")))
    assert [one.way for one in rows_of(made, COMPARES, REFERENCE) if one.wrong] == ["DDP"]


def test_the_analysis_says_what_the_figures_say_and_no_more() -> None:
    found = rows_of(turns(), COMPARES, REFERENCE)
    assert analysis(found, REFERENCE) == [
        "Losses of all synchronous ways are those of one process on the whole batch, within 0.0e+00 of them",
        "m on 2: DDP is the fastest synchronous way, 140.0 ms a step",
        "m on 2: DDP adds most to computing, 40.0 ms a step",
        "m on 2: rows a second over one process of the same way: DDP 1.71",
    ]
    noisy = [replace(turn, step_seconds=0.05 * (turn.round + 1)) if turn.way == "DDP" else turn for turn in turns()]
    told = analysis(rows_of(noisy, COMPARES, REFERENCE), REFERENCE)
    assert "m on 2: what these add to computing is not told from noise: DDP" in told


@pytest.mark.parametrize(("loss", "code"), [(1.5, 0), (1.6, 1)])
def test_the_command_fails_where_losses_differ(
    loss: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "turns.jsonl"
    for way, last in (("one process", 1.5), ("no communication", 1.5), ("DDP", loss)):
        keep(path, Turn(model="alexnet", way=way, ranks=1, round=0, rows=4, step_seconds=1.0, losses=(2.0, last)))
    asked = ("--models", "alexnet", "--processes", "1", "--rows", "4", "--rounds", "1", "--epochs", "0")
    monkeypatch.setattr(
        sys, "argv", ["placer", "bench", "parallel", *asked, "--ways", "DDP", "--turns", str(path), "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code


def test_tables_hold_a_row_for_each_cell() -> None:
    found = rows_of(turns(), COMPARES, REFERENCE)
    assert len(list(csv.reader(io.StringIO(parallel_csv(found))))) == 1 + 6
    assert parallel_markdown(found, ()).count("\n| m |") == 6


def test_pictures_can_be_learnt_from_others_of_their_classes() -> None:
    train, held_out = pictures(256, 0), pictures(128, 1)
    model = classifier("transformer")
    optimizer = sgd("transformer", model.parameters())
    for step in range(24):
        optimizer.zero_grad()
        model(**train.part(32 * step, 32)).backward()
        optimizer.step()
    assert accuracy("transformer", model.state_dict(), held_out) > 0.3  # 0.1 by chance


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "alexnet", "transformer"])
def test_tensorflow_is_taught_every_op(name: str) -> None:
    graph = Graph.of(classifier(name), 2)
    assert set(graph.parameters.values()) == {own for own, _ in classifier(name).named_parameters()}


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "alexnet", "transformer"])
def test_tensorflow_computes_the_same_loss(name: str) -> None:
    tf = pytest.importorskip("tensorflow")
    model, data = classifier(name), pictures(4, 0)
    variables = {own: tf.constant(one.detach().numpy()) for own, one in model.named_parameters()}
    found = Graph.of(model, 4).run(tf, variables, data.images.numpy(), data.labels.numpy())
    assert float(found) == pytest.approx(float(model(**data.part(0, 4)).detach()), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--models", "vgg"), "--models is 'vgg'; give some of resnet50"),
        (("--processes", "0"), "give numbers from 1 to"),
        (("--ways", "NCCL"), "--ways is 'NCCL'; give some of one process"),
    ],
)
def test_what_is_not_understood_is_said(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run(*arguments)
    assert said in " ".join(capsys.readouterr().err.split())
