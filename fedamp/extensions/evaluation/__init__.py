"""Evaluation of models on people's own held-out records, with noise and charge."""

from fedamp.extension import Extension

extension = Extension("evaluation", sections={"evaluation": "fedamp.extensions.evaluation.section:EVALUATED_KEY"})
