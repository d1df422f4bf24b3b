"""What comes from outside: files, YAML with its line numbers, units, code that people name, what is installed."""
