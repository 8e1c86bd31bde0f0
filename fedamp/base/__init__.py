"""What every room uses: types of arrays, numbers as text, the base of sections and records."""
