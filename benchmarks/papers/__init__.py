"""The figures and tables of the five papers, made again with fedamp: ``make papers``."""
