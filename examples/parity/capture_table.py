"""Capture every model of examples.models at full size and hold the result to torch's own counts.

    python -m examples.parity.capture_table                # all models, each in a process of its own
    python -m examples.parity.capture_table gpt2 resnet50  # some
    python -m examples.parity.capture_table --tiny         # the small twins

FLOPs are compared with torch.utils.flop_counter over an eager forward and backward on the meta device, saved bytes with
a saved-tensors hook over the same run: distinct storages that belong to no parameter and no buffer. Both use plain
("eager") attention. Notes:
  groups: the counter multiplies the weight gradient of a grouped convolution by the number of groups; the column
    compares with the counter after that formula is put right, the note gives the factor of the raw count.
  closed form: the counter knows no grouped product; mixtures of experts are compared with the counter given 2 x rows x
    inputs x outputs for each, and with 2 x tokens x parameters of all projections, top-k of the experts, and the
    attention products. Eager runs on meta take the grouped product written in transformers, as the export does: torch's
    own has no float32 on meta.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from math import prod

import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import masking_utils
from transformers.integrations import moe

from examples.models import MODELS, example_batch
from placer.graph import Graph
from placer.tracer import capture, coverage

HEADER = (
    f"{'model':15} {'seconds':>7} {'MiB':>6} {'ops':>5} {'blocks':>6} {'kinds':>5} {'FLOPs':>10} {'counter':>8} "
    f"{'saved bytes':>14} {'hook':>6} {'uncovered':>9}  note"
)


def main() -> None:
    """Print the table; exit 1 where a count differs."""
    parser = argparse.ArgumentParser(description="Capture models and compare with torch's own counts.")
    parser.add_argument("models", nargs="*", help="names; all without any")
    parser.add_argument("--tiny", action="store_true", help="the small twins")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measured(chosen.models[0], chosen.tiny)))
        return
    print(HEADER)
    failed = False
    for name in chosen.models or MODELS:
        command = [
            sys.executable,
            "-m",
            "examples.parity.capture_table",
            name,
            "--one",
            *(["--tiny"] if chosen.tiny else []),
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=False)
        if output.returncode:
            print(f"{name:15} failed: {output.stderr.strip().splitlines()[-1]}")
            failed = True
            continue
        row = json.loads(output.stdout.strip().splitlines()[-1])
        failed = failed or "DIFFERS" in (row["flops_equal"], row["saved_equal"])
        print(
            f"{name:15} {row['seconds']:7.1f} {row['mib']:6.0f} {row['ops']:5} {row['blocks']:6} {row['kinds']:5} "
            f"{row['flops']:10.4g} {row['flops_equal']:>8} {row['saved']:14} {row['saved_equal']:>6} "
            f"{row['uncovered']:>9.1%}  {row['note']}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


def measured(name: str, tiny: bool) -> dict[str, float | int | str]:
    """One row of the table."""
    transformers.logging.set_verbosity_error()
    with torch.device("meta"):
        model = MODELS[name][1 if tiny else 0]()
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    batch = example_batch(model, 2) if tiny or not hasattr(model, "config") else full_batch(model)
    started, worked = time.perf_counter(), time.process_time()
    graph = capture(model, batch=batch)
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row: dict[str, float | int | str] = {
        "seconds": seconds,
        "mib": mib,
        "ops": sum(1 for _ in graph.ops),
        "blocks": len(graph.blocks),
        "kinds": len(graph.classes),
        "flops": graph.forward_flops + graph.backward_flops,
        "saved": graph.saved_bytes,
        "uncovered": coverage(graph).share,
    }
    return row | compared(model, graph) | {"note": f"{processor:.1f} s of processor; " + str(compared_note(model))}


def full_batch(model: nn.Module) -> dict[str, tuple[int, ...]] | None:
    """None: what the configuration implies."""
    config = getattr(model, "config")  # noqa: B009
    if getattr(config, "model_type", "") == "whisper":
        return example_batch(model, 1, length=int(config.max_target_positions))
    return None


def compared(model: nn.Module, graph: Graph) -> dict[str, str]:
    """Whether FLOPs and saved bytes equal torch's own counts."""
    flops = graph.forward_flops + graph.backward_flops
    counted, saved = counts(model, graph)
    mixture = is_mixture(model)
    equal = flops == counted and (not mixture or flops == mixture_flops(model, graph))
    return {
        "flops_equal": "DIFFERS" if not equal else "closed" if mixture else "equal",
        "saved_equal": "equal" if graph.saved_bytes == saved else "DIFFERS",
    }


def compared_note(model: nn.Module) -> str:
    """What a reader of the row must know."""
    if is_mixture(model):
        return "experts in closed form (the counter knows no grouped product)"
    groups = {m.groups for m in model.modules() if isinstance(m, nn.Conv2d) and m.groups > 1}
    return f"raw counter takes weight gradients x groups ({min(groups)} to {max(groups)})" if groups else ""


def counts(model: nn.Module, graph: Graph) -> tuple[int, int]:
    """FLOPs by torch's counter and distinct saved bytes by a hook, of one eager step on the meta device."""
    batch = {
        entry.name: torch.zeros(
            entry.tensor.shape_at(graph.rows), dtype=getattr(torch, entry.tensor.dtype), device="meta"
        )
        for entry in graph.inputs
    }
    model.train()
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    seen: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            seen.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    # On meta nobody can look whether a row holds several packed sequences; examples never do.
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    moe._can_use_grouped_mm = lambda *_: False
    formulas = {
        torch.ops.aten.convolution_backward: convolution_backward,
        torch.ops.transformers.grouped_mm_fallback: grouped_product,
        torch.ops.transformers.grouped_mm_fallback_backward: grouped_product_backward,
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(**batch, **({"use_cache": False} if has_cache(model) else {}))
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
    return counter.get_total_flops(), sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


def convolution_backward(  # type: ignore[no-untyped-def]
    grad_out_shape,
    x_shape,
    w_shape,
    _bias,
    _stride,
    _padding,
    _dilation,
    transposed,
    _output_padding,
    _groups,
    mask,
    out_shape,
) -> int:
    """The counter's formula with the weight gradient at the cost of the forward pass, whatever the groups."""
    positions = prod((x_shape if transposed else grad_out_shape)[2:]) * x_shape[0]
    return int(2 * positions * prod(w_shape) * (bool(mask[0]) + bool(mask[1])))


def grouped_product(x_shape, w_shape, *_, **__) -> int:  # type: ignore[no-untyped-def]
    """x (rows, inputs) by one matrix of w (experts, inputs, outputs) per row."""
    return int(2 * x_shape[0] * w_shape[1] * w_shape[2])


def grouped_product_backward(x_shape, w_shape, *_, **__) -> int:  # type: ignore[no-untyped-def]
    """Both gradients at the cost of the forward pass."""
    return 2 * grouped_product(x_shape, w_shape)


def has_cache(model: nn.Module) -> bool:
    """Whether forward takes `use_cache`."""
    return hasattr(getattr(model, "config", None), "use_cache") and type(model).__name__ != "BertForMaskedLM"


def is_mixture(model: nn.Module) -> bool:
    """Whether the model has experts."""
    return any(hasattr(module, "gate_up_proj") and hasattr(module, "down_proj") for module in model.modules())


def mixture_flops(model: nn.Module, graph: Graph) -> int:
    """2 x tokens x weights of every product, top-k of the experts; attention products; backward twice that."""
    config = getattr(model, "config")  # noqa: B009
    rows, length = graph.inputs[0].tensor.shape_at(graph.rows)
    tokens, layers = rows * length, config.num_hidden_layers
    depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    routed = sum(m.gate_up_proj.numel() + m.down_proj.numel() for m in model.modules() if hasattr(m, "gate_up_proj"))
    routers = sum(p.numel() for name, p in model.named_parameters() if name.endswith(("gate.weight", "router.weight")))
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    scores = 2 * 2 * rows * config.num_attention_heads * length * length * depth * layers
    forward = 2 * tokens * (linear + routers + routed // experts * config.num_experts_per_tok) + scores
    return 3 * forward


if __name__ == "__main__":
    main()
