"""Files that somebody spoilt, read the way placer's commands read them: see `__main__`."""
