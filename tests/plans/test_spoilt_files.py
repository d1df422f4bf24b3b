"""Files that somebody spoilt: nonsense is refused on reading by its field, and no text of theirs rules a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial, reduce
from io import StringIO
from pathlib import Path

import pytest
from pydantic import JsonValue
from rich.text import Text

from commands import CLUSTER, Command, command_in, plan_in
from placer.cluster.cluster_file import parse_cluster
from placer.errors import UsageError
from placer.io.terminal import LINE_AGAIN, HarmlessStream, harmless
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.report.printing import plain

HUGE = 10**30


@pytest.mark.in_turns
def test_ten_thousand_spoilt_files_of_every_kind_are_refused_in_words_or_still_make_sense(
    checkout: Path, tmp_path: Path
) -> None:
    command = ("-m", "examples.parity.fuzz", "--cases", "10000", "--seed", "7", "--keep", str(tmp_path / "kept"))
    ran = subprocess.run([sys.executable, *command], cwd=checkout, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {line.split()[0]: line.split() for line in ran.stdout.splitlines()[1:] if line.strip()}
    assert {name: int(row[-2]) for name, row in rows.items()} == {
        "plan": 6500, "cluster": 3200, "config": 100, "checkpoint": 200,
    }  # fmt: skip
    assert all(int(row[1]) > 0 and int(row[2]) > 0 and set(row[3:8]) == {"0"} for row in rows.values())


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan_in(tmp_path_factory.mktemp("plan"))


def put(tree: JsonValue, way: str, value: JsonValue) -> None:
    *steps, last = [int(step) if step.isdecimal() else step for step in way.split("/")]
    holder = reduce(lambda found, step: found[step], steps, tree)
    holder[last] = value  # type: ignore[index]


DEVICE = "cluster/groups/0/0/devices/0/0"
LINK = "cluster/groups/0/0/link"
WRONG: tuple[tuple[str, JsonValue], ...] = (
    ("settings/learning_rate", -1e-3), ("settings/learning_rate", float("nan")), ("settings/betas/0", -0.1),
    ("settings/betas/1", 1), ("settings/epsilon", -1e-8), ("settings/weight_decay", -0.01), ("settings/momentum", -1),
    ("settings/clip_norm", 0), ("settings/clip_norm", float("inf")), ("settings/precision", "float33"),
    ("settings/expert_loads", [-1.0]), ("settings/overlap", 1), ("bound", 0), ("bound", -1), ("bound", float("nan")),
    ("ledger/step_seconds", 0), ("ledger/step_seconds", float("inf")), ("ledger/memory/0/parameters", -1),
    ("microbatches/0", 0), ("microbatches/0", -4), ("microbatches/0", HUGE), ("bucket_bytes", 0), ("seed", HUGE),
    ("asked/budget", -1), ("stages/0/degree", 0), ("stages/0/degree", -1), ("stages/0/devices/0", -1),
    ("stages/0/shares", [0, 1]), ("stages/0/layout", -1), ("stages/0/first", -1), ("stages/0/sharding", "some"),
    (f"{LINK}/bandwidth", 0), (f"{LINK}/bandwidth", -1), (f"{LINK}/bandwidth", float("nan")),
    (f"{LINK}/latency_seconds", float("inf")), (f"{LINK}/latency_seconds", -1e-6), (f"{LINK}/ports", 0),
    (f"{LINK}/share", 0), (f"{LINK}/share", 2), (f"{DEVICE}/memory_bytes", 0), (f"{DEVICE}/memory_bandwidth", -5),
    (f"{DEVICE}/rates/0/1", 0), (f"{DEVICE}/rates/0/1", float("inf")), (f"{DEVICE}/rates/0/0", "int4"),
    (f"{DEVICE}/launch_seconds", -1), (f"{DEVICE}/backend", "tpu"), ("cluster/groups/0/1", 0),
    ("cluster/groups/0/1", HUGE),
    ("cluster/groups/0/0/devices/0/1", HUGE), ("graph/rows", 0), ("graph/blocks/0/kind", 99),
    ("graph/blocks/0/kind", -1),
    ("graph/blocks/1/inputs", ["b7.0"]), ("graph/blocks/0/parameters", []), ("graph/outputs", ["b99.0"]),
    ("graph/loss/value", "b0.9"), ("graph/loss/labels", "nothing"), ("graph/classes/0/outputs", ["o99.0"]),
    ("graph/classes/0/ops/0/inputs", ["i99"]), ("graph/classes/0/ops/0/arguments", "t99"),
    ("graph/classes/0/ops/0/arguments", "t0) + print("), ("graph/classes/0/ops/0/target", "add"),
    ("graph/classes/0/ops/0/kept_again", [9]), ("graph/classes/1/parameters/0/dtype", "float33"),
    ("graph/classes/0/ops/0/forward_flops", [-5, 0]), ("graph/classes/1/kept_inputs", [99]),
)  # fmt: skip


@pytest.mark.parametrize(("way", "value"), WRONG)
def test_nonsense_in_a_plan_is_refused_with_the_fields_name(plan: Plan, way: str, value: JsonValue) -> None:
    document = json.loads(plan.to_json())
    put(document, way, value)
    with pytest.raises(UsageError, match="is not a valid plan") as caught:
        Plan.from_json(json.dumps(document))
    names = [part for part in way.split("/") if not part.isdecimal()]
    assert names[-1] in str(caught.value) or f"{names[-1]}." in str(caught.value), caught.value


def test_a_plan_reads_back_what_it_wrote_bound_by_these_rules(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("field", "value"), [("betas", (0.9, 1.0)), ("epsilon", -1.0), ("weight_decay", float("nan")), ("momentum", -0.1)]
)
def test_settings_refuse_nonsense_however_they_are_made(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field):
        RunSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("10 GB/s", "1e400 GB/s", "devices.chip.memory_bandwidth"),
        ("10 GB/s", "0 GB/s", "devices.chip.memory_bandwidth"),
        ("50 GFLOP/s", "-1 GFLOP/s", "devices.chip.rates.float32"),
        ("5 us", "1e999 s", "devices.chip.launch"),
        ("count: 2", f"count: {HUGE}", r"nodes\[0\].devices\[0\].count"),
        ("[1 GFLOP, 90%]", "[1 MFLOP, 90%]", "devices.chip.efficiency"),
        ("kind: chip", "kind: " + "c" * 10**6, r"nodes\[0\].devices\[0\].kind"),
        ("kind: chip", "kind: CHIP", r"nodes\[0\].devices\[0\].kind"),
        ("[{kind: chip, count: 2}]", "''", r"nodes\[0\].devices"),
        ("latency: 50 us", "latency: " + "9" * 10**6 + " us", r"nodes\[0\].link.latency"),
    ],
)
def test_nonsense_in_a_cluster_file_is_refused_with_the_fields_name(old: str, new: str, named: str) -> None:
    assert old in CLUSTER
    with pytest.raises(UsageError, match=named) as caught:
        parse_cluster(CLUSTER.replace(old, new))
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("n_layer", 2 * 10**6, "n_layer is 2000000; give at most 4096"),
        ("torch_dtype", 1e-6, "torch_dtype is 1e-06; give one such as float32"),
        ("max_position_embeddings", -16, "max_position_embeddings is -16"),
    ],
)
def test_a_configuration_that_nobody_could_build_is_refused_before_it_is_built(
    field: str, value: float, said: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8, field: value}))
    ended = command("plan", "config.json", "--cluster", "small.yaml", "--batch", "8x16")
    assert ended.code == 2 and said in ended.error


EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202etxt\r"


def harmful(text: str) -> list[str]:
    return [one for one in text if not one.isprintable() and one not in "\n\t"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_in(tmp_path, monkeypatch, capsys)


def named_evil(document: dict[str, JsonValue]) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """The plan with a name that a terminal would obey in one place after another."""
    for way in ("graph/name", f"{DEVICE}/name", "cluster/name", "graph/blocks/0/name", "cluster/notes", "assumptions"):
        changed = json.loads(json.dumps(document))
        put(changed, way, [EVIL] if way.endswith("s") else EVIL)
        yield way, changed


@pytest.mark.in_turns
def test_no_name_in_a_plan_gets_to_a_terminal_as_it_is(plan: Plan, tmp_path: Path, command: Command) -> None:
    for way, document in named_evil(json.loads(plan.to_json())):
        (tmp_path / "plan.json").write_text(json.dumps(document))
        for arguments in (("explain",), ("explain", "--json"), ("simulate",)):
            ended = command(arguments[0], "plan.json", *arguments[1:])
            assert ended.code == 0 and not harmful(ended.out + ended.error), way


def test_no_text_in_an_error_gets_to_a_terminal_as_it_is(plan: Plan, tmp_path: Path, command: Command) -> None:
    document = json.loads(plan.to_json())
    document[EVIL] = 1
    (tmp_path / "plan.json").write_text(json.dumps(document))
    (tmp_path / "evil.yaml").write_text(CLUSTER + f"{json.dumps(EVIL)}: 1\n")
    for arguments in (("explain", "plan.json"), ("plan", "bad_models:tiny", "--cluster", "evil.yaml")):
        ended = command(*arguments)
        assert ended.code == 2 and r"\x1b" in ended.error and not harmful(ended.error)


def test_what_a_terminal_would_obey_is_shown_and_all_else_stays() -> None:
    assert harmless("Größe 3\u00a0µs\n\t…") == "Größe 3\u00a0µs\n\t…"
    assert harmless("a\x1b[1mb\ud800") == r"a\x1b[1mb\ud800"
    assert plain(Text("a\x1b[1mb")) == r"a\x1b[1mb"
    written = StringIO()
    partial(print, file=HarmlessStream(written))(f"{LINE_AGAIN}step 1 {LINE_AGAIN}")
    assert written.getvalue() == LINE_AGAIN + r"step 1 \r\x1b[K" + "\n"
    assert re.fullmatch(r"[ -~]*", harmless("\x00\x7f"))
