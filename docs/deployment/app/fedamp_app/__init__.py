"""Points at fedamp."""
