"""Files of checkpoints and weights as they lie on disk: read without running what they hold, and checked."""
