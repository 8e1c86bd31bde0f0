"""The sections of a scenario, by theme."""
