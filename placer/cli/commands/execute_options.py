"""The flags of `placer execute`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Data = Annotated[str, typer.Option(help="A folder of text or of tensors, stdlib, or synthetic.")]
Tokenizer = Annotated[str, typer.Option(help="A tokenizer's folder; without one text is read as bytes.")]
Engine = Annotated[Literal["placer", "deepspeed"], typer.Option(help="What runs the plan; deepspeed where it can.")]
Seed = Annotated[int, typer.Option(help="The order of the data.")]
LrSchedule = Annotated[
    Literal["constant", "linear", "cosine"], typer.Option(help="How the learning rate falls after the warmup.")
]
WarmupSteps = Annotated[int, typer.Option(min=0, help="Steps in which the learning rate rises.")]
FinalRate = Annotated[float, typer.Option(help="Where it ends, as a share of the plan's rate.")]
EvalEvery = Annotated[int, typer.Option(min=0, help="Evaluate each so many steps; 0 is never.")]
EvalBatches = Annotated[int, typer.Option(min=1, help="Batches of one evaluation.")]
Checkpoint = Annotated[str, typer.Option(help="Save here, and go on from here if it holds a checkpoint.")]
CheckpointEvery = Annotated[int, typer.Option(min=0, help="Save each so many steps; 0 is at the end.")]
CheckpointAsync = Annotated[bool, typer.Option("--checkpoint-async", help="Write them beside the next steps.")]
Weights = Annotated[str, typer.Option(help="Start from the weights of this Hugging Face folder.")]
SaveWeights = Annotated[str, typer.Option(help="Write the final weights to this new Hugging Face folder.")]
Keep = Annotated[int, typer.Option(min=1, help="How many checkpoints stay.")]
Synchrony = Annotated[
    Literal["synchronous", "local", "stale"],
    typer.Option(
        help="How replicas keep together: by every step; local SGD, averaged every so many steps; stale, with "
        "gradients some steps late. The last two change the mathematics: losses are not those of one device."
    ),
]
AverageEvery = Annotated[
    int | None, typer.Option(help="With --synchrony local: steps between two averages of the replicas.")
]
Staleness = Annotated[
    int | None, typer.Option(help="With --synchrony stale: how many steps late gradients are; 0 is synchronous.")
]
# torchrun takes a bare --log for an abbreviation of its own options, even after the program's name.
Log = Annotated[str, typer.Option("--log-file", "--log", help="Append a JSON line per step here.")]
Tensorboard = Annotated[str, typer.Option(help="A folder for TensorBoard.")]
SaveExpertLoads = Annotated[
    str, typer.Option(help="Write the tokens that each expert got to this file, as --expert-loads takes it.")
]
Report = Annotated[str, typer.Option(help="Write losses, seconds and both ledgers here as JSON.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Run ranks on fake tensors in this process; exit 1 where they disagree or overflow."
    ),
]
Rank = Annotated[int | None, typer.Option(min=0, help="With --dry-run: this rank; else one of each class.")]
Program = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="With --dry-run: a program that stands for the plan's own of that rank."),
]
Summary = Annotated[
    bool, typer.Option(hidden=True, help="Whether the result is printed; who reads the report shows it.")
]
