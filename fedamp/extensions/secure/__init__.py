"""Secure aggregation: the nodes hide their sums from the server, and add the noise themselves."""

from fedamp.extension import Extension

extension = Extension("secure", choices={"aggregation": ("fedamp.extensions.secure.terms:SecureAggregation",)})
