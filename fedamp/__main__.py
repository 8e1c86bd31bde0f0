"""The commands, as ``python -m fedamp``."""

from fedamp.cli import main

main()
