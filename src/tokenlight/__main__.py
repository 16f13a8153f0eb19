"""``python -m tokenlight``: the command line, run by this Python."""

from tokenlight.cli import main

if __name__ == "__main__":
    main()
