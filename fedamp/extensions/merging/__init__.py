"""Merge trained models for a new budget (Yin, Zaheer, Li 2026, "Differentially Private Model Merging").

The command ``fedamp merge`` takes finished runs on the same units, and writes a folder with one model and its
certificate (docs/research/merging.md). :mod:`~fedamp.extensions.merging.candidates` reads the models,
:mod:`~fedamp.extensions.merging.weights` has the theorems, and :mod:`~fedamp.extensions.merging.merge` writes the
folder. The core reads such a folder, as for ``fedamp compare``, by :mod:`~fedamp.extensions.merging.merged`.

The charge of random selection is :class:`fedamp.accounting.RandomSelection`. Linear combinations need runs with
independent noise. No key of a scenario is added. :mod:`~fedamp.extensions.merging.mechanism` has the mechanism of a
linear combination.
"""

from fedamp.extension import Extension

extension = Extension(
    "merging",
    commands={"merge": "fedamp.extensions.merging.commands:merge"},
    help_groups={"merge": "Train"},
    readers={"certificate.json": "fedamp.extensions.merging.merged:READER"},
    accounting={
        name: f"fedamp.extensions.merging.mechanism:{name}"
        for name in ("FIXED_GRADIENTS", "JOINT_RELEASE", "LinearCombination")
    },
)
