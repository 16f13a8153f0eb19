"""``python -m tokenlight.cli`` is ``tokenlight``."""

from tokenlight.cli import main

main()
