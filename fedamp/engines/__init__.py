"""Engines: where the clients of a simulated federation train."""
