"""Commands that make a plan or tell what one is."""
