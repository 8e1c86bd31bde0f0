"""What a Flower node does in a round: train its clients stacked together, clip each update, add them up.

Importing this package imports neither torch nor Flower; the modules that need them do.
"""
