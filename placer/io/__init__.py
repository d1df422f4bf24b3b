"""What comes from outside (files, YAML with its line numbers, units, code that people name, what is installed), and
`memo`, `same_objects`: what is worked out once."""
