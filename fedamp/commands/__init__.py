"""What the commands share, and their groups; :mod:`fedamp.cli` puts them together."""
