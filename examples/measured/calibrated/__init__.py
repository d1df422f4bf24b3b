"""Plans on this machine as `placer calibrate` measured it: on processes (`__main__`), on one GPU (`one_gpu`)."""
