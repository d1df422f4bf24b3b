"""Commands that show a plan to others and take it elsewhere."""
