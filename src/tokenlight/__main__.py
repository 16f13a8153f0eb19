"""``python -m tokenlight``: the command line, for the Python that was asked."""

from tokenlight.cli import main

if __name__ == "__main__":
    main()
