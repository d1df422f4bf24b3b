"""Problem, Strategy, Solution: what every strategy is given and what it may return; who judges what it returned."""
