"""Which blocks make a stage, and on which devices: best-first search with proven bounds."""
