"""What is built on many runs: sweeps and tuning."""
