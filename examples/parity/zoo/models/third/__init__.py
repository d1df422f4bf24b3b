"""Models by people who had read no more than the README, or the code in search of what it takes for granted."""
