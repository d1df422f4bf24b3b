"""What a rank holds, at once and by category, is what the ledger predicts, within ten per cent, where tensors make up
the bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.measured.memory.table import MODELS, TEXT, table_lines
from examples.parity.cases import Case

pytestmark = pytest.mark.in_turns

MODELS_OF = "examples.measured.memory.models"
GPT2 = Case(model=f"{MODELS_OF}:gpt2", precision="float32", shapes=TEXT, microbatches=(8,))
MIXED = replace(GPT2, precision="bfloat16-autocast")
CASES = [
    GPT2,
    replace(GPT2, recompute=True),
    replace(GPT2, recompute="selective"),
    replace(GPT2, recompute="selective", recomputed=2),
    replace(GPT2, recompute=True, recomputed=3),
    replace(GPT2, positions=2, microbatches=(4, 4)),
    replace(GPT2, positions=2, schedule="zero-bubble", microbatches=(2, 2, 2, 2)),
    replace(GPT2, positions=2, schedule="zero-bubble", recompute=True, microbatches=(2, 2, 2, 2)),
    replace(GPT2, positions=2, schedule="zero-bubble", recompute="selective", microbatches=(2, 2, 2, 2)),
    replace(GPT2, degree=2, axis="tensor", microbatches=(4, 4)),
    # Dropout of attention keeps its scores, and makes its masks of numbers.
    replace(GPT2, model=f"{MODELS_OF}:gpt2_dropout"),
    # Its scores are made again, and by another library's op the products of experts are not.
    replace(GPT2, model=f"{MODELS_OF}:gpt2_dropout", recompute="selective"),
    replace(GPT2, model=f"{MODELS_OF}:mixtral", shapes=MODELS["mixtral"], recompute="selective"),
    # A mask that wants a gradient, which no fused kernel of a CPU makes; values read by blocks of another stage.
    replace(GPT2, model=f"{MODELS_OF}:t5", positions=2, microbatches=(4, 4)),
    # Values that skip stages; blocks of unlike size, gathered one by one; copies that convolutions keep.
    replace(GPT2, model=f"{MODELS_OF}:unet", shapes=(), positions=2, microbatches=(4, 4)),
    replace(GPT2, model=f"{MODELS_OF}:unet", shapes=(), replicas=2, sharding="parameters"),
    replace(GPT2, model=f"{MODELS_OF}:unet", shapes=(), degree=2, axis="height", microbatches=(4, 4)),
    replace(
        GPT2, model=f"{MODELS_OF}:resnet", shapes=MODELS["resnet"], positions=2, turns=2,
        schedule="interleaved", microbatches=(2, 2, 2, 2),
    ),
    # Autocast's copies: of weights, of what several products read, of none where experts' products stay in float32;
    # values of 16 bits between blocks.
    MIXED,
    replace(MIXED, recompute=True),
    replace(MIXED, positions=2, microbatches=(4, 4)),
    replace(MIXED, replicas=2, sharding="parameters"),
    replace(MIXED, model=f"{MODELS_OF}:mixtral", shapes=MODELS["mixtral"]),
    replace(MIXED, model=f"{MODELS_OF}:unet", shapes=(), recompute=True),
    replace(MIXED, model=f"{MODELS_OF}:resnet", shapes=MODELS["resnet"], positions=2, microbatches=(4, 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_holds_what_the_ledger_predicts(case: Case) -> None:
    for line in table_lines(case):
        assert not line.far, str(line)
