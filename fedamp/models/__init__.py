"""Make torch models without batch norm, and say how each of them can be split.

:mod:`fedamp.models.architectures` describes the built-in models without torch, for plans and costs.
:mod:`fedamp.models.networks` builds modules from a scenario's section, and :mod:`fedamp.models.inspection` refuses what
cannot be trained privately. :mod:`fedamp.models.units` has the nodes that a model declares, :mod:`fedamp.models.masks`
and :mod:`fedamp.models.pieces` the submodels that clients train. Importing this package imports no torch.

Nothing here trains, clips or knows a client; :mod:`fedamp.client` does.
"""
