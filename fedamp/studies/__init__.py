"""What is built on many runs: sweeps, merging, audits."""
