"""Batches of a fixed size: every round has as many units, drawn without replacement."""

from fedamp.extension import Extension

extension = Extension("batches", choices={"check_in": ("fedamp.extensions.batches.check_in:BatchesCheckIn",)})
