"""The command line: :mod:`fedamp.cli.commands` has the commands."""
