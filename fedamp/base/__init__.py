"""Small modules for every room: array types, numbers as text, the bases of sections and records."""
