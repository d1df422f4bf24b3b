"""Piper's problem, exact or within a proved bound."""
