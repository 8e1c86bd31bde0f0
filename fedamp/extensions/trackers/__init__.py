"""Trackers show the public numbers of a run in other programs."""
