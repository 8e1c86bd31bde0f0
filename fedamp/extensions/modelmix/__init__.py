"""Mix models: the server takes its step from a random mixture of the last two models (Xiao, Wan, Devadas 2022).

The idea, ModelMix, is the key ``mixing`` of a scenario (:mod:`~fedamp.extensions.modelmix.section`), charged by
:class:`~fedamp.extensions.modelmix.mechanism.ModelMix`. docs/research/papers/modelmix.md reproduces the paper.

It needs independent noise that the server adds, and that shows in the next model alone (no momentum). It also needs a
fixed clip, and rounds that release nothing but the sum of updates. It breaks one fact: that noise alone hides a round.
So canaries are refused beside it.
"""

from fedamp.extension import Extension

_HERE = "fedamp.extensions.modelmix"

extension = Extension(
    "modelmix",
    sections={"mixing": f"{_HERE}.section:MIXING"},
    accounting={name: f"{_HERE}.mechanism:{name}" for name in ("MixedCoordinate", "ModelMix")},
)
