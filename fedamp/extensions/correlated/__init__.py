"""Noise that is correlated over rounds, so that the noise of a round cancels in later ones, and its check-in."""

from fedamp.extension import Extension

_HERE = "fedamp.extensions.correlated"

extension = Extension(
    "correlated",
    choices={
        "check_in": (f"{_HERE}.check_in:ClassesCheckIn", f"{_HERE}.check_in:SpacedCheckIn"),
        "privacy.noise": (f"{_HERE}.section:BandedNoise", f"{_HERE}.section:BufferedNoise"),
    },
)
