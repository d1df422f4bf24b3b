"""Plans on DeepSpeed's engine, for those within what it can do: data x ZeRO (0 to 3), and pipelines of ZeRO 0 and 1.

    sharding none         ZeRO 0    state on every replica
    sharding optimizer    ZeRO 1    optimizer state sharded
    sharding gradients    ZeRO 2    gradients and optimizer state sharded
    sharding parameters   ZeRO 3    parameters too
    several stages        DeepSpeed's pipeline engine under 1F1B, a layer of it per stage

The stages are the same modules placer's own engine runs, so that losses are shares of the global mean; DeepSpeed
averages over replicas and microbatches, so they are multiplied by both. https://deepspeed.readthedocs.io
"""
