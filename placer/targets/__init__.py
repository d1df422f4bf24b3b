"""A plan taken elsewhere: written in the words of other frameworks and of launchers."""
