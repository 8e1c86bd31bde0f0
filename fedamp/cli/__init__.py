"""Run fedamp from the command line.

:mod:`fedamp.cli.commands` has the commands, :mod:`fedamp.cli.first` those of the first hour, and
:mod:`fedamp.cli.terminal` what they share: arguments, output, errors and exit statuses. Extensions add further
commands. A command computes nothing itself: the same answers come from :mod:`fedamp.api` in Python.
"""
