"""The command line."""

from fedamp.cli.commands import main as main
