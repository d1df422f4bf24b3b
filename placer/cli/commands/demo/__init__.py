"""The main job end to end on this machine: capture, compare strategies, plan, run, hold the run to the prediction."""
