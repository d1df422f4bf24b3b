"""`genetic`: a population of plans under three aims, by NSGA-II."""
