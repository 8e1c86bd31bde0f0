"""Train classes of ``transformers`` with adapters of ``peft``: few numbers are trained and noised, the base is frozen.

LoRA is of Hu et al. (arXiv 2106.09685). Two variants freeze one factor (FFA-LoRA, arXiv 2403.12313) or both around a
small matrix (Fed-SB, arXiv 2502.15436). No key is added: ``model.name: transformers:CLASS`` names the class, and
``model.options`` has the adapters. The extra ``fedamp[peft]`` installs both libraries. docs/models.md, "Transformers
and adapters", has the options and an example.

:mod:`~fedamp.extensions.adapters.transformers` builds the models. Reading and freezing weights is the core's
(:mod:`fedamp.models.pretrained`), so a custom model may have adapters without this folder. Facts of a scenario are not
changed: ranks, neurons and heads are nodes, as those of any model.
"""

from fedamp.extension import Extension

extension = Extension(
    name="adapters",
    model_libraries={"transformers": "fedamp.extensions.adapters.transformers:from_transformers"},
)
