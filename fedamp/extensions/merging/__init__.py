"""Merging of trained models for a new budget (Yin, Zaheer, Li 2026, "Differentially Private Model Merging")."""
