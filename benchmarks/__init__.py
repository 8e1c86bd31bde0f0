"""Speed and tightness, measured against peers as ratios in one run. Run as ``python -m benchmarks.NAME``."""
