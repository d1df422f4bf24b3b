"""The models, in files by family; each file ends in the table of its entries."""
