"""Strategies side by side: `table`, `page` (HTML), `plot` (a picture), and `measured` seconds of their plans."""
