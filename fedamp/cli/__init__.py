"""The command line."""

from fedamp.cli.commands import app as app
from fedamp.cli.commands import main as main
