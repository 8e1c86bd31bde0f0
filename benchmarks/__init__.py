"""What is measured of fedamp; README.md says what lies where. Run as ``python -m benchmarks.FOLDER.NAME``."""
