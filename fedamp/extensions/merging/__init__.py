"""Merging of trained models for a new budget (Yin, Zaheer, Li 2026, "Differentially Private Model Merging")."""

from fedamp.extension import Extension

extension = Extension(
    "merging",
    commands={"merge": "fedamp.extensions.merging.commands:merge"},
    follows={"merge": "watch"},
    readers={"certificate.json": "fedamp.extensions.merging.merged:READER"},
)
