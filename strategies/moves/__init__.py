"""Moves over plans: from a plan to one that differs in a choice or two, repaired where a small change is enough."""
