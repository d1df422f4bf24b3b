"""The judge: the user's model as it is, eager, uncut, the whole batch at once, torch's own clipping and optimizer.

It knows nothing of plans, captures or the runtime: a test of the imports holds it to torch and to plain values. What
must be the same in both runs and is no part of the model is handed in from outside, as plain tensors and numbers: masks
of dropout (`masks`), and the rows over which batch norm is to take its statistics (`norms`).
"""
