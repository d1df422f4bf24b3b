"""How ops are cut over the devices of a replica: an integer program per block, joined at the borders."""
