"""Aggregate securely: the nodes hide their sums from the server, and add the noise themselves.

The protocol is SecAgg+ (Bell, Bonawitz, Gascón, Lepoint, Raykova 2020), with changes against a server that lies:
:mod:`~fedamp.extensions.secure.protocol` has the claim. The idea is a scheme of the key ``aggregation`` (``scheme:
secure``), the key ``federation.agreement``, and the commands ``fedamp agreement`` and ``fedamp join``.
docs/secure-aggregation.md explains it, and docs/research/secure-aggregation.md proves that the nodes' shares of noise
cost what one Gaussian costs.

On the server, :mod:`~fedamp.extensions.secure.secure_sums` is the aggregator, and
:mod:`~fedamp.extensions.secure.collector` its part of the protocol. On a node,
:mod:`~fedamp.extensions.secure.participant` decides what is answered, and :mod:`~fedamp.extensions.secure.member` is
its part of the protocol. Both read the terms (:mod:`~fedamp.extensions.secure.terms`).

It needs independent noise in each round, units that live on one node each, and fedamp's own training. It breaks the
fact that the server adds the noise, so ModelMix and canaries are refused beside it. A simulation plays the sum, and no
message of the protocol.
"""

from fedamp.extension import Extension

extension = Extension(
    name="secure",
    commands={
        "agreement": "fedamp.extensions.secure.commands:agreement",
        "join": "fedamp.extensions.secure.commands:join",
    },
    help_groups={"agreement": "Deploy", "join": "Deploy"},
    sections={"federation.agreement": "fedamp.extensions.secure.terms:AGREEMENT"},
    choices={"aggregation": ("fedamp.extensions.secure.terms:SecureAggregation",)},
    task_keys={"terms": "fedamp.extensions.secure.terms:TERMS"},
    exchanges={"agreement": "fedamp.extensions.secure.exchange:EXCHANGE"},
)
