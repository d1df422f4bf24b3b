"""The problems and cost models of Piper, Aceso and Galvatron, as published."""
