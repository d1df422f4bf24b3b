"""Clusters of unequal nodes and links, emulated on one Linux machine, to hold predictions against measurements."""
