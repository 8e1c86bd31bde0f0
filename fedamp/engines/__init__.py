"""Carry the messages between the server and its nodes: simulated ones, and those of a deployment.

A round's order and answer, with the layout of their bytes, are in :mod:`fedamp.engines.wire`: read that first.
:mod:`fedamp.engines.engines` chooses what runs a simulation: this process (:mod:`fedamp.engines.simulation`) or Ray
(:mod:`fedamp.engines.ray`). :mod:`fedamp.engines.deployment` guards the grid of Flower's SuperLink, and
:mod:`fedamp.engines.flower` is the only module that touches Flower's internals.

No engine knows the plan, the noise or an epsilon, and no result depends on the engine.
"""
