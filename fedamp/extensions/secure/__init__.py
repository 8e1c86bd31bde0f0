"""Secure aggregation: the nodes hide their sums from the server, and add the noise themselves."""

from fedamp.extension import Extension

extension = Extension(
    name="secure",
    commands={
        "agreement": "fedamp.extensions.secure.commands:agreement",
        "join": "fedamp.extensions.secure.commands:join",
    },
    follows={"agreement": "admit", "join": "agreement"},
    sections={"federation.agreement": "fedamp.extensions.secure.terms:AGREEMENT"},
    choices={"aggregation": ("fedamp.extensions.secure.terms:SecureAggregation",)},
    task_keys={"terms": "fedamp.extensions.secure.terms:TERMS"},
    exchanges={"agreement": "fedamp.extensions.secure.exchange:EXCHANGE"},
)
