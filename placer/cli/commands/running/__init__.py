"""Commands that run a plan, or this machine."""
