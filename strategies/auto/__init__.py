"""`auto`: every baseline and every search that may help, the best estimate wins."""
