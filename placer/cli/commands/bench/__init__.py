"""`placer bench`: what is measured and compared; a file each, listed in `group`."""
