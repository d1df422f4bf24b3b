"""Strategies side by side: `table`, `page` (HTML), and `measured` seconds of their plans."""
