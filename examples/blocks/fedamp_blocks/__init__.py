"""A check-in scheme, a submodel scheme and a server optimizer for fedamp, in a package of their own."""

from fedamp.extension import Extension

extension = Extension(
    "blocks",
    choices={
        "check_in": ("fedamp_blocks.check_in:AlternatingCheckIn",),
        "submodels": ("fedamp_blocks.submodels:LayerSubmodels",),
        "server.optimizer": ("fedamp_blocks.optimizer:SignDescent",),
    },
)
