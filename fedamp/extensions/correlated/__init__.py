"""Correlate noise over rounds, so that the noise of a round cancels in later ones (docs/research/correlated-noise.md).

Two schemes of ``privacy.noise``: ``banded`` (Choquette-Choo et al. 2023, arXiv 2306.08153) and ``buffered`` (Dvijotham
et al. 2024, arXiv 2404.16706), in :mod:`~fedamp.extensions.correlated.section`. ``tree`` (Kairouz et al. 2021, arXiv
2103.00039) is a baseline without amplification, in :mod:`~fedamp.extensions.correlated.tree`. Two schemes of
``check_in`` keep the rounds of a unit apart, as all need it: ``classes`` and ``spaced``, in
:mod:`~fedamp.extensions.correlated.check_in`.

The noise needs a fixed clip, and rounds that release nothing but the sum of updates. It breaks the fact that the noise
of rounds is independent, so ModelMix and secure aggregation are refused beside it. Its state, the noise of earlier
rounds, is as secret as the noise: it stays on the server.
"""

from fedamp.extension import Extension

_HERE = "fedamp.extensions.correlated"

extension = Extension(
    "correlated",
    choices={
        "check_in": (f"{_HERE}.check_in:ClassesCheckIn", f"{_HERE}.check_in:SpacedCheckIn"),
        "privacy.noise": (
            f"{_HERE}.section:BandedNoise",
            f"{_HERE}.section:BufferedNoise",
            f"{_HERE}.tree:TreeNoise",
        ),
    },
    accounting={name: f"{_HERE}.spaced:{name}" for name in ("BallsInBins", "Cyclic", "Spaced")},
)
