"""What was decided: the plan, its settings, schedule and ledger, and what it was made with."""
