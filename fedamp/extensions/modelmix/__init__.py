"""ModelMix: the server takes its step from a random mixture of the last two models."""

from fedamp.extension import Extension

extension = Extension("modelmix", sections={"mixing": "fedamp.extensions.modelmix.section:MIXING"})
