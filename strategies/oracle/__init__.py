"""Every plan of a small problem, by trying all: what the exact searches are held to."""
