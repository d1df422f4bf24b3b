"""Rows that a mask of values takes, kept among all rows while a model is exported, which knows no values."""
