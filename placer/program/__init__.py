"""Program: what each rank does in one step under a plan, in order. The simulator plays it and the runtime executes it.

`lower(plan)` gives one `Program` per rank. All their lists are cut from ONE order of all computations, messages and
collectives of the step. Hence, and `agreement` proves it for given programs:

* two ranks list the messages between them, of both directions, in the same order, each `send` with its `receive`;
* executed with nothing but blocking rendezvous (a send waits for its receive), without tags, a step cannot deadlock.

To lose no time to an order fixed beforehand, an executor posts a receive when it comes to it and waits before the
first Compute that reads it (F for activations, B or I for gradients), and waits for its sends at the end of the step.

Collectives that an engine issues during a Compute (DDP's buckets, FSDP2's units) stand behind it, in order of issue.
"""

from placer.program.agreement import agreement
from placer.program.buckets import (
    GradientBucket,
    ShardUnit,
    ddp_buckets,
    divided_buckets,
    gradient_buckets,
    part_buckets,
    shard_units,
    shared_parameters,
)
from placer.program.collectives import tied_by_inner, tied_by_shard
from placer.program.connected_replicas import ConnectedReplicas, all_replicas, connected_replicas, connected_with
from placer.program.instructions import (
    Collective,
    Compute,
    Engine,
    Instruction,
    Message,
    OptimizerStep,
    Program,
    load_program,
    program_document,
)
from placer.program.lowering import crossings, like_devices, lower, plan_actions, rows_of_replica
from placer.program.mixed_allreduce import SumRoute, SumStep, route_seconds, route_steps, sum_route
from placer.program.peers import Disagreement, peer_disagreements
from placer.program.ranks import (
    Transfer,
    inner_axes,
    like_ranks,
    line_ranks,
    position_of,
    position_of_rank,
    rank_of,
    replica_ranks,
    stage_of_block,
    transfers,
)
from placer.program.unsupported import indivisible, unequal_meshes
from placer.program.value_sizes import parameter_dtype, value_bytes, value_dtype

__all__ = [
    "Collective",
    "Compute",
    "ConnectedReplicas",
    "Disagreement",
    "Engine",
    "GradientBucket",
    "Instruction",
    "Message",
    "OptimizerStep",
    "Program",
    "ShardUnit",
    "SumRoute",
    "SumStep",
    "Transfer",
    "agreement",
    "all_replicas",
    "connected_replicas",
    "connected_with",
    "crossings",
    "ddp_buckets",
    "divided_buckets",
    "gradient_buckets",
    "indivisible",
    "inner_axes",
    "like_devices",
    "like_ranks",
    "line_ranks",
    "load_program",
    "lower",
    "parameter_dtype",
    "part_buckets",
    "peer_disagreements",
    "plan_actions",
    "position_of",
    "position_of_rank",
    "program_document",
    "rank_of",
    "replica_ranks",
    "route_seconds",
    "route_steps",
    "rows_of_replica",
    "shard_units",
    "shared_parameters",
    "stage_of_block",
    "sum_route",
    "tied_by_inner",
    "tied_by_shard",
    "transfers",
    "unequal_meshes",
    "value_bytes",
    "value_dtype",
]
