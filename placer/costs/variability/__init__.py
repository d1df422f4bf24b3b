"""Steps whose seconds differ from time to time: what waiting for each other makes of ranks that do not agree."""
