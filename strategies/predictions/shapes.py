"""The sizes of a row's model, as printed, or why it is not built.

Architectures that are built: Megatron's GPT (`gpt`), that with squared ReLU (`squared`), llm-foundry's (`mpt`), Llama,
mixtures of experts with grouped-query or latent attention (`moe`, `mla`), BERT, T5 and residual networks.
"""

from __future__ import annotations

from placer.io.model_shape import Shape
from placer.strategies.predictions.rows import Row

# Vocabularies are padded so that every device of a tensor group has a multiple of it (Megatron-LM,
# megatron/training/arguments.py, --make-vocab-size-divisible-by).
PADDING = 128
# What DeepSeek-V3's tables leave out is as published (arXiv:2412.19437, section 4.2; its config.json).
DEEPSEEK_VOCABULARY = 129280
# Vocabularies of the tokenisers that Megatron's tests name where they print none: GPT-2's, BERT's uncased one
# (Megatron-LM, tests/functional_tests/test_cases: gpt2-vocab.json, vocab.txt).
GPT2_VOCABULARY, BERT_VOCABULARY = 50257, 30522
# First words of `arch` -> how the model is built.
KINDS = {
    "gpt": "gpt", "gpt-sqrelu": "squared", "nemotron": "squared", "llama": "llama", "moe": "moe", "mixtral": "moe",
    "moe-mla": "mla", "bert": "bert", "t5": "t5",
}  # fmt: skip
# Models of image tables by their names; tasks by names are not enough (DeepLearningExamples: `Classification`).
IMAGES = {"resnet-50": "resnet50", "resnet50": "resnet50", "resnext101": "resnext101", "se-resnext101": "se-resnext101"}
IMAGE_CLASSES, IMAGE_SIZE = 1000, 224
# Of models whose tables leave it out, as published (openai/gpt-oss-120b, config.json).
HEAD_SIZES = {"gpt oss": 64}
# Rank of adapters (LoRA) where it is not printed: NeMo's (nemo/collections/llm/peft/lora.py, `dim`).
ADAPTERS = 32
# Until then torch had no kernel for root-mean-square norms (pytorch/pytorch, pull requests 121364: "an unoptimized
# implementation", and 153666: "Fused RMSNorm", of June 2025), and torchtitan's wrote them out (train_configs/
# llama3_8b.toml: norm_type = "rmsnorm").
FUSED_NORM = "2025-07"
TOKENS_NEEDED = ("layers", "hidden", "heads", "seq_len")
# NVIDIA's BERT pads a batch to its longest row, and rows of 512 come in bins of 64 tokens (its
# scripts/run_pretraining.sh: phase1/unbinned, phase2/bin_size_64; NVIDIA/LDDL, README.md, "sequence binning"). Filled
# up to 512, half of the tokens of Wikipedia's rows are padding (arXiv:2107.02027, abstract); filled up to the end of
# their bin they are half a bin longer than they are.
BINNED, BIN, FILLING = 512, 64, 2.0
# Tokens of an example where several are packed into a row, each with attention of its own: NeMo's table is of SQuAD 1.1
# (NVIDIA/NeMo, docs/source/performance/performance_summary.md), whose 98,169 examples hold 94.06 MiB
# (tensorflow.org/datasets/catalog/squad), 1,000 bytes each, at some 4 bytes a token 250: as many as divide a row. (A
# mean understates attention, which grows with the square; within so short pieces it is little in any case.)
PACKED = 256


def shape_of(row: Row) -> Shape | str:
    """The sizes of the model of a row, or what keeps it from being built."""
    words = row.text("arch").lower().replace("(", " ").split()
    kind = KINDS.get(words[0], "") if words and "layer" not in words else ""
    if not kind and row.text("model").lower().startswith("bert"):
        kind = "bert"
    if kind == "gpt" and "llm-foundry" in row.text("framework").lower():
        kind = "mpt"
    if not kind:
        return _image(row) or f"no model is built for {row.text('model')!r} ({row.text('arch') or 'no architecture'})"
    missing = [name for name in TOKENS_NEEDED if not row.count(name)]
    vocabulary = _vocabulary(row, kind)
    if missing or not vocabulary:
        return f"sizes not printed: {', '.join(missing or ['vocab'])}"
    if kind not in ("moe", "mla") and row.count("experts"):
        return f"no model is built of {row.text('arch')!r} with experts"
    if kind in ("moe", "mla") and not (row.count("experts") and row.count("topk")):
        return "sizes not printed: experts, topk" if kind == "moe" else _latent(row, vocabulary)
    hidden, heads = row.count("hidden"), row.count("heads")
    return Shape(
        kind=kind, layers=row.count("layers"), hidden=hidden, heads=heads,
        key_heads=row.count("kv_heads", heads), inner=row.count("ffn", 4 * hidden), vocabulary=vocabulary,
        sequence=binned(row) or row.count("seq_len") // examples_per_row(row),
        head_size=row.count("head_dim") or _head_size(row), experts=row.count("experts"), chosen=row.count("topk"),
        expert_inner=row.count("moe_ffn", row.count("ffn", 4 * hidden)),
        gated=not (kind == "moe" and "gpt3" in row.text("model").lower()),
        adapters=ADAPTERS if kind == "llama" and "LoRA" in row.text("model") else 0,
        written_out=kind == "llama" and "torchtitan" in row.text("framework").lower() and row.text("date") < FUSED_NORM,
    )  # fmt: skip


def binned(row: Row) -> int:
    """Tokens of a row on average where rows in bins are padded to the longest of their batch; 0 where they are not."""
    loads = row.text("model").lower().startswith("bert") and "ngc" in row.text("framework").lower()
    longest = row.count("seq_len")
    return round(longest / FILLING + BIN / 2) if loads and longest >= BINNED else 0


def examples_per_row(row: Row) -> int:
    """Examples in a row, which is estimated as so many rows: the same tokens, and attention within each."""
    return max(1, row.count("seq_len") // PACKED) if "packed" in row.text("model") else 1


def _latent(row: Row, vocabulary: int) -> Shape:
    """DeepSeek-V3: what is not printed is as published."""
    return Shape(
        kind="mla", layers=row.count("layers"), hidden=row.count("hidden"), heads=row.count("heads"),
        vocabulary=vocabulary, sequence=row.count("seq_len") // examples_per_row(row),
    )  # fmt: skip


def _vocabulary(row: Row, kind: str) -> int:
    """Entries as run: padded where they are cut; at tensor degree 1 as printed."""
    told = row.count("vocab")
    if not told and kind == "mla":
        told = DEEPSEEK_VOCABULARY
    if not told and "megatron" in row.text("framework").lower():
        told = BERT_VOCABULARY if kind in ("bert", "t5") else GPT2_VOCABULARY
    tensor = max(1, row.count("tp"))
    step = PADDING * tensor if tensor > 1 else 1
    return -(-told // step) * step


def _head_size(row: Row) -> int:
    model = row.text("model").lower()
    return next((size for name, size in HEAD_SIZES.items() if name in model), 0)


def _image(row: Row) -> Shape | None:
    """A network of images by its name."""
    first = row.text("model").lower().split()[:1]
    kind = next((kind for name, kind in IMAGES.items() if first and first[0].startswith(name)), "")
    if not kind or "ssd" in row.text("model").lower():
        return None
    return Shape(kind=kind, sequence=IMAGE_SIZE, vocabulary=IMAGE_CLASSES)
