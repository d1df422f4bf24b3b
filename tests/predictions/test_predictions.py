"""Published rows are predicted as a user's plan is; errors are of what was measured; what has no plan says why."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest

from commands import command_in
from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from placer.report.bench.predictions_page import page
from placer.strategies.predictions.errors import constant_mape, slice_of
from placer.strategies.predictions.intervals import with_intervals
from placer.strategies.predictions.machines import cluster_of
from placer.strategies.predictions.prediction import Missing, Prediction, predictions
from placer.strategies.predictions.rows import Row, read_rows
from placer.strategies.predictions.settings import settings_of
from placer.strategies.predictions.slicing import slices
from placer.tracer.published.models import model_graph

pytestmark = pytest.mark.in_turns

OMNIPATH = "v100-32gbx4*2@4xib-edr"
SIZES = {
    "arch": "gpt", "layers": "4", "hidden": "256", "heads": "4", "ffn": "1024", "vocab": "1024", "seq_len": "128",
    "gpu": "A100-80GB-SXM", "gpus_per_node": "8", "date": "2024-01", "framework": "Megatron-LM",
}  # fmt: skip


def row(number: int = 1, /, **cells: str) -> Row:
    made = {
        "row_id": f"made#{number}", "dataset": "made", "model": "GPT", "n_gpus": "4", "tp": "2", "pp": "1", "dp": "2",
        "micro_batch": "2", "global_batch": "8", "precision": "bf16", "recompute": "none", "step_time_s": "0.01",
    }  # fmt: skip
    return Row({**SIZES, **made, **cells})


def predicted(*rows: Row) -> list[Prediction]:
    found = [one for one in predictions(rows, model_graph) if isinstance(one, Prediction)]
    assert len(found) == len(rows)
    return found


def written(folder: Path, rows: list[Row]) -> Path:
    path = folder / "runs.csv"
    columns = dict.fromkeys(name for one in rows for name in one.cells)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(dict(one.cells) for one in rows)
    return path


@pytest.mark.parametrize(
    ("cells", "spec"),
    [
        ({"gpu": "H100-80GB-SXM", "n_gpus": "16", "interconnect": ""}, "h100x8*2"),
        ({"gpu": "H100-96GB-HBM2e (500W, Grand Teton)", "n_gpus": "8"}, "h100-96gbx8"),
        (
            {"gpu": "V100-32GB", "gpus_per_node": "4", "n_gpus": "8", "interconnect": "OmniPath"},
            "v100-32gbx4*2@4xib-edr",
        ),
        ({"gpu": "GB200", "gpus_per_node": "4", "n_gpus": "128"}, "gb200x64*2"),
        ({"gpu": "A chip nobody knows"}, None),
    ],
)
def test_machines_are_those_of_the_catalogue_by_printed_names(cells: Mapping[str, str], spec: str | None) -> None:
    assert cluster_of(row(**cells)) == spec


@pytest.mark.parametrize(
    ("cells", "name", "value"),
    [
        ({"precision": "TF32"}, "tf32", True),
        ({"framework": "NeMo 24.07 / Megatron-Core", "date": "2024-09"}, "stack", "nemo"),
        ({"framework": "Megatron-Core r0.8.0", "date": "2024-07"}, "stack", "megatron-core"),
        ({"framework": "Megatron-LM", "date": "2021-04"}, "stack", "megatron"),
        ({"framework": "Megatron-DeepSpeed", "date": "2024"}, "stack", "megatron-deepspeed"),
        ({"framework": "torchtitan (FSDP2)"}, "stack", "fsdp"),
        ({"framework": "PyTorch", "zero": "DDP"}, "stack", "torch"),
        ({"precision": "16-bit (fp16-style 16-bit gradient accumulation)"}, "precision", "float16"),
        ({"overlap": "torch.compile", "framework": "torchtitan", "date": "2024-12"}, "fused_loss", False),
        ({"overlap": "torch.compile", "framework": "torchtitan", "date": "2025-06"}, "fused_loss", True),
        ({"precision": "TF32"}, "precision", "float32"),
        ({"precision": "NVFP4"}, "float4", True),
        ({"precision": "MXFP8"}, "float8", True),
        ({"attention": "megatron fused softmax (no flash)"}, "attention", "eager"),
        ({"attention": "cuDNN fused attention (TE)"}, "attention", "tuned"),
        ({"attention": "SDPA flash"}, "attention", "flash"),
        ({"attention": "flash-attention (triton impl, v1 era)"}, "attention", "flash1"),
        ({"overlap": "torch.compile; async TP", "framework": "torchtitan"}, "fusion", True),
        ({"overlap": "torch.compile; async TP", "framework": "torchtitan"}, "tensor_overlap", True),
        ({"overlap": "torch.compile; vanilla TP", "framework": "torchtitan"}, "tensor_overlap", False),
    ],
)
def test_settings_are_what_the_row_prints(cells: Mapping[str, str], name: str, value: object) -> None:
    assert getattr(settings_of(row(**cells)), name) == value


def test_a_row_is_estimated_by_the_code_that_estimates_plans() -> None:
    (one,) = predicted(row(tp="1", dp="4", micro_batch="1"))
    assert one.seconds == one.ledger.step_seconds > 0
    assert isclose(one.error or 0.0, one.seconds / 0.01 - 1)
    assert one.work == one.ledger.flops / one.ledger.peak_flops


def test_more_devices_a_replica_move_more_and_hold_less() -> None:
    small, large = predicted(row(tp="1", dp="4", micro_batch="1"), row(tp="4", dp="1", micro_batch="4"))
    assert large.ledger.memory[0].parameters < small.ledger.memory[0].parameters


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"layers": ""}, "sizes not printed: layers"),
        ({"arch": "hybrid-mamba"}, "no model is built"),
        ({"gpu": "TPU v4"}, "machines not in the catalogue"),
        ({"tp": "3", "dp": ""}, "no multiple of tensor 3"),
        ({"tp": "", "pp": "", "dp": "", "zero": ""}, "the layout is not printed"),
        ({"micro_batch": "", "global_batch": ""}, "no batch printed"),
        ({"global_batch": "1"}, "a batch of 1 rows is printed for 2 replicas"),
        ({"arch": "bert", "heads": "7"}, "no model has the sizes"),
    ],
)
def test_what_has_no_plan_is_missing_with_the_reason(cells: Mapping[str, str], words: str) -> None:
    (one,) = predictions([row(**cells)], model_graph)
    assert isinstance(one, Missing)
    assert words in one.reason


def test_recompute_that_is_not_printed_is_the_fastest_that_fits() -> None:
    (one,) = predicted(row(recompute=""))
    (none,) = predicted(row())
    assert one.seconds == none.seconds
    assert "recompute not printed: the best by estimate" in one.notes


def test_torchtitans_selective_recompute_runs_every_second_product_or_layer_again() -> None:
    cells = {
        "framework": "torchtitan (FSDP2)",
        "arch": "llama",
        "kv_heads": "4",
        "tp": "1",
        "dp": "4",
        "micro_batch": "1",
    }
    none, layers, ops, full = predicted(
        *(row(**cells, recompute=told) for told in ("none", "selective (2nd layer)", "selective (op)", "full"))
    )
    assert none.ledger.seconds.recompute == 0
    assert isclose(layers.ledger.seconds.recompute, full.ledger.seconds.recompute / 2, rel_tol=0.2)
    kept = [one.ledger.memory[0].activations for one in (none, ops, full)]
    assert kept == sorted(kept, reverse=True) and len({*kept}) == len(kept)


def test_megatrons_selective_recompute_makes_scores_again_and_nothing_else() -> None:
    """Korthikanti et al. (arXiv:2205.05198), section 5: 34 sbh + 5 a s^2 b bytes a layer become 34 sbh."""
    cells = {"framework": "Megatron-LM", "date": "2022-05", "attention": "megatron fused softmax (no flash)"}
    cells |= {
        "n_gpus": "1",
        "tp": "1",
        "dp": "1",
        "micro_batch": "1",
        "global_batch": "1",
        "layers": "8",
        "vocab": "512",
    }
    cells |= {"precision": "fp16"}
    kept, again = predicted(row(**cells, recompute="none"), row(**cells, recompute="selective"))
    hidden, heads, tokens = (int(kept.row.text(name)) for name in ("hidden", "heads", "seq_len"))
    scores = 8 * 5 * heads * tokens**2
    assert isclose(kept.ledger.memory[0].activations - again.ledger.memory[0].activations, scores * 7 / 8, rel_tol=0.1)
    assert isclose(again.ledger.memory[0].activations, 8 * 34 * tokens * hidden + scores / 8, rel_tol=0.2)


def test_gradients_of_megatron_stay_in_float32_and_those_of_nemo_in_16_bits() -> None:
    cells = {"n_gpus": "1", "tp": "1", "dp": "1", "date": "2024-09", "precision": "bf16"}
    torch, core, nemo = (
        one.ledger.memory[0].gradients
        for one in predicted(*(row(**cells, framework=told) for told in ("PyTorch", "Megatron-LM", "NeMo")))
    )
    assert core == 2 * nemo == torch  # whose microbatches add up in float32, as this runtime sums them


def test_an_allocators_count_leaves_the_context_out_and_has_workspaces_in() -> None:
    """32 MiB for each of two threads on a Hopper, and for Transformer Engine."""
    cells = {"peak_mem_gib": "10", "gpu": "H100-80GB-SXM", "date": "2024-09", "framework": "Megatron-LM"}
    smi, allocator = predicted(row(**cells, mem_kind="nvidia-smi"), row(**cells, mem_kind="max_allocated"))
    assert smi.bytes - allocator.bytes == smi.ledger.memory[0].overhead - 3 * 32 * 2**20


def test_rows_in_bins_by_length_are_shorter_than_the_longest() -> None:
    """NVIDIA's BERT: rows of up to 512 tokens are half as long, and padded to the end of a bin of 64."""
    cells = {
        "model": "BERT-large",
        "framework": "PyTorch NGC",
        "arch": "LanguageModeling",
        "tp": "1",
        "dp": "4",
        "seq_len": "512",
    }
    binned, same, full = predicted(
        *(row(**{**cells, **told}) for told in ({}, {"seq_len": "288"}, {"framework": "PyTorch"}))
    )
    assert binned.seconds == same.seconds < full.seconds
    assert "rows in bins by length: estimated with 288 tokens each, their mean" in binned.notes
    assert full.notes == ()


def test_examples_packed_into_a_row_attend_to_themselves_alone() -> None:
    """NeMo's fine-tuning: as many tokens as a row has, in pieces of some 256."""
    cells = {
        "arch": "llama", "kv_heads": "4", "tp": "1", "dp": "4", "micro_batch": "2", "seq_len": "4096",
        "hidden": "2048", "ffn": "8192",
    }  # fmt: skip
    pieces = {"seq_len": "256", "micro_batch": "32", "global_batch": "128"}
    packed, same, whole = predicted(
        *(row(**{**cells, **told}) for told in ({"model": "Llama (SFT finetune, packed)"}, pieces, {}))
    )
    assert packed.seconds == same.seconds < whole.seconds
    assert "examples packed into rows: estimated as rows of 256 tokens each" in packed.notes


def test_what_is_published_of_megatron_core_divides_its_optimizer() -> None:
    cells = {"date": "2025-04", "tp": "1", "dp": "4", "micro_batch": "1"}
    core, said, torch = (
        one.ledger.memory[0].optimizer
        for one in predicted(
            row(**cells, framework="NeMo", zero="DDP"),
            row(**cells, framework="NeMo", zero="distributed optimizer"),
            row(**cells, framework="PyTorch", zero="DDP"),
        )
    )
    assert core == said == torch / 4


def test_all_tokens_of_a_device_cross_its_links_to_their_experts_and_back() -> None:
    cells = {
        "arch": "moe", "experts": "8", "topk": "2", "moe_ffn": "1024", "kv_heads": "4", "tp": "1", "dp": "4",
        "ep": "4", "micro_batch": "8", "global_batch": "32", "seq_len": "2048", "hidden": "1024",
    }  # fmt: skip

    def forward(slower: float) -> float:
        """Seconds where links between the devices have so small a part of their bandwidth."""
        cluster = Cluster.load("a100-80gb-sxm4x4")
        (node, count), *_ = cluster.groups
        link = replace(node.link, bandwidth=node.link.bandwidth / slower)
        thin = replace(cluster, groups=((replace(node, link=link), count),))
        (one,) = predictions([row(**cells)], model_graph, lambda _: thin)
        assert isinstance(one, Prediction)
        return one.ledger.seconds.forward

    # Two copies of each token: 1,024 numbers of 2 bytes, three quarters of them elsewhere; in 4 layers, there and back.
    link = Cluster.load("a100-80gb-sxm4x4").nodes[0].link
    sent = 4 * 2 * 0.75 * (8 * 2048) * 2 * 1024 * 2 / (link.bandwidth * link.shared)
    assert forward(2.0) - forward(1.0) == pytest.approx(sent, rel=0.01)


def test_torchtitans_norms_were_made_op_by_op_before_torch_had_a_kernel() -> None:
    cells = {"arch": "llama", "kv_heads": "4", "tp": "1", "dp": "4", "micro_batch": "1", "framework": "torchtitan"}
    before, after = predicted(row(**cells, date="2024-04"), row(**cells, date="2025-11"))
    assert before.ledger.flops == after.ledger.flops
    assert before.seconds > after.seconds


def test_no_kernel_fuses_the_loss_of_megatron() -> None:
    cells = {"n_gpus": "1", "tp": "1", "dp": "1", "micro_batch": "8", "vocab": "50304", "attention": "unfused"}
    compiled, megatron = (
        one.ledger.seconds.forward
        for one in predicted(row(**cells, framework="torch.compile"), row(**cells, framework="Megatron-DeepSpeed"))
    )
    assert megatron > compiled


def test_adapters_alone_are_trained_where_the_row_says_so() -> None:
    cells = {"arch": "llama", "kv_heads": "4", "tp": "1", "dp": "4", "micro_batch": "1"}
    adapted, whole = predicted(row(**cells, model="Llama (LoRA finetune)"), row(**cells))
    assert adapted.ledger.memory[0].gradients < whole.ledger.memory[0].gradients / 2
    assert adapted.ledger.seconds.reduction < whole.ledger.seconds.reduction


def test_llm_foundry_drops_nothing_and_keeps_no_masks() -> None:
    dropping, keeping = predicted(
        row(tp="1", dp="4", micro_batch="1"), row(tp="1", dp="4", micro_batch="1", framework="llm-foundry/Composer")
    )
    assert keeping.ledger.memory[0].activations < dropping.ledger.memory[0].activations


def test_nemos_pipelines_may_be_interleaved() -> None:
    cells = {"tp": "1", "pp": "2", "dp": "2", "micro_batch": "1", "framework": "NeMo 24.07 / Megatron-Core"}
    (one,) = predicted(row(**cells))
    assert "virtual stages not printed: the best by estimate" in one.notes


def test_the_best_constant_is_at_least_as_good_as_any_other() -> None:
    pairs = [(1.0, 2.0), (2.0, 3.0), (4.0, 9.0), (1.0, 1.0)]
    best = constant_mape(pairs)
    assert best is not None
    for number in range(1, 400):
        share = number / 100
        assert best <= sum(abs(share * work / measured - 1) for work, measured in pairs) / len(pairs) + 1e-12


def test_regret_is_of_the_row_that_is_predicted_fastest() -> None:
    first, second = predicted(row(1, tp="1", dp="4", micro_batch="1"), row(2, step_time_s="0.02"))
    assert first.group == second.group
    chosen, other = sorted((first, second), key=lambda one: one.seconds)
    found = slice_of("made", [first, second])
    assert found.groups == 1
    assert found.regret == chosen.row.seconds / min(chosen.row.seconds, other.row.seconds) - 1


def test_runs_that_ran_out_of_memory_are_no_measured_seconds_and_are_counted() -> None:
    found = slice_of("made", predicted(row(status="oom", step_time_s="")))
    assert (found.ran_out, found.fitting, found.seconds) == (1, 1, None)


def test_an_interval_is_of_other_tables_alone() -> None:
    """Tables whose runs took twice what is predicted say that of any other table, and their own rows say nothing."""
    (one,) = predicted(row())
    others = [row(n, dataset=f"other {n}", step_time_s=str(2 * one.seconds)) for n in (2, 3)]
    told, *rest = with_intervals(predicted(row(step_time_s=str(5 * one.seconds)), *others))
    assert isinstance(told, Prediction)
    assert isclose(told.low, 2 * one.seconds) and isclose(told.high, 2 * one.seconds)
    assert all(isinstance(each, Prediction) and each.high > 2 * one.seconds for each in rest)
    (alone,) = with_intervals([one])
    assert isinstance(alone, Prediction)
    assert alone.low == 0


def test_an_interval_is_of_runs_whose_devices_work_alike() -> None:
    """Small steps that took 4 times as long say so of small ones; of large ones, 3 decades off, nothing."""
    small, other = predicted(row(), row(2, dataset="small"))
    large = [replace(one, ledger=replace(one.ledger, flops=one.ledger.flops * 1000)) for one in (small, other)]
    slow, fast = (
        replace(one, row=row(3, dataset=f"table {factor}", step_time_s=str(factor * one.seconds)))
        for one, factor in ((other, 4), (large[1], 2))
    )
    like_slow, like_fast, *_ = with_intervals([small, large[0], slow, fast])
    assert isinstance(like_slow, Prediction) and isinstance(like_fast, Prediction)
    assert isclose(like_slow.high, 4 * small.seconds)
    assert isclose(like_fast.low, 2 * large[0].seconds)


def test_an_interval_is_of_runs_of_the_same_layers() -> None:
    """A table of torch's steps that took 4 times as long says less of Megatron's than three of Megatron's own."""
    (asked,) = predicted(row(framework="Megatron", date="2021-04"))

    def table(name: str, factor: float, framework: str) -> Prediction:
        cells = {**asked.row.cells, "dataset": name, "framework": framework, "step_time_s": str(factor * asked.seconds)}
        return replace(asked, row=Row(cells))

    usual = [table(f"usual {number}", 1, "Megatron") for number in range(3)]
    for framework, factor in (("PyTorch", 1), ("Megatron", 4)):
        found, *_ = with_intervals([asked, *usual, table("slow", 4, framework)])
        assert isinstance(found, Prediction)
        assert isclose(found.high, factor * asked.seconds)


def test_bytes_have_an_interval_of_other_tables_and_what_is_too_large_may_be_within_it() -> None:
    (one,) = predicted(row(peak_mem_gib="1"))
    half = [row(n, dataset=f"other {n}", peak_mem_gib=str(one.bytes / 2**31)) for n in (2, 3)]
    told, *_ = with_intervals(predicted(row(), *half))
    assert isinstance(told, Prediction)
    assert isclose(told.bytes_low, one.bytes / 2)
    near, far = (replace(told, fits=False, room=told.held / over) for over in (1.5, 3))
    assert not near.beyond and far.beyond
    found = slice_of("made", [near, far])
    assert (found.too_large, found.beyond) == (2, 1)


def test_the_command_prints_rows_and_slices_of_any_file_of_these_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    placer = command_in(tmp_path, monkeypatch, capsys)
    data = written(tmp_path, [row(1), row(2, dataset="another", arch="llama", kv_heads="2"), row(3, layers="")])
    run = placer("bench", "predictions", "--data", str(data), "--html", "page.html", "--json")
    assert run.code == 0, run.error
    found = {one["slice"]: one for one in json.loads(run.out)["slices"]}
    made = found["made"]
    assert (made["rows"], made["represented"]) == (2, 1)
    assert made["missing"] == [{"reason": "sizes not printed: layers", "rows": 1}]
    (each,) = made["predictions"]
    assert each["row_id"] == "made#1"
    assert each["measured"] == 0.01
    assert isclose(made["mape"], abs(each["predicted"] / 0.01 - 1))
    assert isclose(made["bias"], each["predicted"] / 0.01 - 1)
    assert made["constant_mape"] == 0
    assert "<td>another" in (tmp_path / "page.html").read_text()


def test_what_is_no_table_is_misuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command_in(tmp_path, monkeypatch, capsys)("bench", "predictions", "--data", "none.csv")
    assert run.code == 2
    assert "none.csv does not exist" in run.error
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="has no column row_id"):
        read_rows(wrong)
    (one,) = predictions([row(layers="many")], model_graph)
    assert isinstance(one, Missing)
    assert "column layers says 'many', where a number belongs" in one.reason


def test_names_on_the_page_are_text() -> None:
    text = page(slices(predicted(row(dataset="<script>alert(1)</script>"))))
    assert "<script>" not in text


def test_published_rows_beat_the_best_constant(shared: Path) -> None:
    """Some of the steps that vTrain measured, beside one share of the peak for all of them."""
    rows = [one for one in read_rows(shared / "truth") if one.dataset == "vtrain_single_node_a100"][::96]
    found = slice_of("vtrain", list(predictions(rows, model_graph)))
    assert found.seconds is not None
    assert found.constant_mape is not None
    assert len(found.predicted) == len(rows)
    assert found.seconds.mape < found.constant_mape / 2
