"""Program: what each rank does in one step under a plan, in order. The simulator plays it and the runtime executes it.

`lower(plan)` gives one `Program` per rank. All their lists are cut from ONE order of all computations, messages and
collectives of the step. Hence, and `agreement` proves it for given programs:

* two ranks list the messages between them, of both directions, in the same order, each `send` with its `receive`;
* executed with nothing but blocking rendezvous (a send waits for its receive), without tags, a step cannot deadlock.

To lose no time to an order fixed beforehand, an executor posts a receive when it comes to it and waits before the
first Compute that reads it (F for activations, B or I for gradients), and waits for its sends at the end of the step.

Collectives that an engine issues during a Compute (DDP's buckets, FSDP2's units) stand behind it, in order of issue.
"""
