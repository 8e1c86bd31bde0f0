"""Noise: exact Gaussians, drawn for every round."""
