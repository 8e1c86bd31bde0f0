"""Models of ``transformers`` with adapters of ``peft``: a frozen base, and few numbers that are trained and noised."""

from fedamp.extension import Extension

extension = Extension(
    name="adapters",
    model_libraries={"transformers": "fedamp.extensions.adapters.transformers:from_transformers"},
)
