"""Train on top of frozen networks of ``transformers``: few numbers are trained and noised.

LoRA is of Hu et al. (arXiv 2106.09685). Two variants freeze one factor (FFA-LoRA, arXiv 2403.12313) or both around a
small matrix (Fed-SB, arXiv 2502.15436). ``model.name: transformers:CLASS`` names the class, and ``model.options`` has
the adapters of ``peft``. The extra ``fedamp[peft]`` installs both libraries. docs/models.md, "Transformers and
adapters", has the options and an example. Or a public encoder makes the inputs: the step ``encode`` of
``data.transform``.

:mod:`~fedamp.extensions.adapters.transformers` builds the models, and :mod:`~fedamp.extensions.adapters.encoder` has
the step. Reading and freezing weights is the core's
(:mod:`fedamp.models.pretrained`), so a custom model may have adapters without this folder. Facts of a scenario are not
changed: ranks, neurons and heads are nodes, as those of any model.
"""

from fedamp.extension import Extension

extension = Extension(
    name="adapters",
    choices={"data.transform": ("fedamp.extensions.adapters.encoder:Encode",)},
    model_libraries={"transformers": "fedamp.extensions.adapters.transformers:from_transformers"},
)
