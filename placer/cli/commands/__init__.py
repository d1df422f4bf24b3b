"""The commands: `planning` makes plans and tells what they are, `running` runs them, `bench` compares. A file each."""
