"""Models of ``transformers`` with adapters of ``peft``: a frozen base, and few numbers that are trained and noised."""

from fedamp.extension import Extension

extension = Extension("adapters")
