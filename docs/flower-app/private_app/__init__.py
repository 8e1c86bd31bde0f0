"""A Flower app that trains privately."""
