"""One folder an idea: all of it that the core does not need. :mod:`fedamp.extension` has the seams."""
