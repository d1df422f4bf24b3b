"""The largest load, contiguous or free."""
