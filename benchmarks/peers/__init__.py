"""Other tools for training with differential privacy, at the work of benchmarks/studies/federations.py."""
