"""What one would do without a planner."""
