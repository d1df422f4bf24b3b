"""`python -m placer`: the command line."""

from placer.cli import main

if __name__ == "__main__":
    main()
