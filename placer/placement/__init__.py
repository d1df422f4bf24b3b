"""Placement problems that come as files: graphs with given costs, their readers, their evaluator. No solver is here."""
