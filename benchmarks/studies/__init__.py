"""Finished research: each module measures what a page says, and its results lie beside it."""
