"""Play a plan over Flower: strategies whose privacy is amplified and accounted for.

:class:`PrivateStrategy` makes the orders of a round, :mod:`fedamp.strategies.aggregation` adds up the replies,
:mod:`fedamp.strategies.pipeline` turns the sum into a release, and :mod:`fedamp.strategies.roster` knows the nodes. The
round loop of a run is in :mod:`fedamp.server.loop`; a custom Flower app uses
:class:`fedamp.server.custom_app.AppStrategy`.
"""

from fedamp.strategies.private import PrivateStrategy

__all__ = ["PrivateStrategy"]
