"""One file a command: parse, call one library function, print."""
