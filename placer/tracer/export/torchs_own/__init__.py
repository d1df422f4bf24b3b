"""What torch does on its own while it exports, and is told to do otherwise."""
