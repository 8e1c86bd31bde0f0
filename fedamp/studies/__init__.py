"""What is built on many runs: sweeps, audits."""
