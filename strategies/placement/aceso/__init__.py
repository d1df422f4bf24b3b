"""Aceso's problem, exact within its evaluator."""
