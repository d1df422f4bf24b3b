"""Lower bounds of an outline, whatever its cuts, from coarse to near."""
