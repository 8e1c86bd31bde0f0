"""Each unit trains one layer of the model, which is drawn at random and stays hidden."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedamp import rng
from fedamp.accounting import Mechanism, Submodels
from fedamp.errors import ModelError
from fedamp.federation.check_in import UnitIds
from fedamp.federation.submodels import Part, SubmodelScheme
from fedamp.models.model import Model
from fedamp.models.networks import build, is_random
from fedamp.models.pieces import Piece, Pieces


class LayerPiece(Piece):
    """The whole model, of which a unit may change one layer alone.

    Attributes:
        layer: names of the parameters of that layer.
    """

    owns_all = False

    def __init__(self, piece: Piece, layer: frozenset[str], is_random: bool) -> None:
        super().__init__(piece.module, frozenset(), piece.known, is_random)
        self.layer = layer

    def owned(self, updates: dict[str, Tensor], seeds: NDArray[np.void]) -> dict[str, Tensor]:
        """Silence all other layers: the charge for the hidden layer rests on this."""
        for name, update in updates.items():
            if name not in self.layer:
                update.zero_()
        return super().owned(updates, seeds)

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Add the layer's arrays alone, whatever a node has sent."""
        for name in self.layer:
            total[name][...] += part[name]


class LayerSubmodels(SubmodelScheme):
    """Each unit trains one of ``count`` groups of layers a round, a random one, which stays hidden.

    The groups are disjoint submodels of which one is hidden (Dong, Chen, Özgür 2025, Theorem 3.4).
    """

    scheme: Literal["layers"] = "layers"
    count: int = Field(ge=2, examples=[2], description="number of groups; the i-th layer is in group i modulo count")
    choices_are_all = True

    @property
    def copies(self) -> int:
        return self.count

    def training_share(self, units: int) -> float:
        return 1 / self.count

    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float, units: int) -> tuple[Part, ...]:
        return (Part("split", clip, noise_multiplier, expected_cohort / self.count),)

    def charge(self, part: Part, release: Mechanism, capacity: str | None = None) -> Mechanism:
        return Submodels(release, self.count)

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        return rng.stream(seed, "submodels", round_).integers(self.count, len(cohort)).astype(np.int64)

    def possible_draws(self, masks: int, round_: int = 1) -> list[tuple[bytes, int]]:
        return [(bytes(rng.SEED_BYTES), number) for number in range(self.count)]

    def submodel_frequencies(self, units: int) -> list[tuple[float, int]]:
        return [(1 / self.count, number) for number in range(self.count)]

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Pieces:
        module = build(model, input_shape, num_classes)
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in module.named_parameters()))
        if len(layers) < self.count:
            raise ModelError(f"submodels.count must be at most {len(layers)}, the layers of {model.name}")
        groups = [set(layers[number :: self.count]) for number in range(self.count)]
        names = [name for name, _ in module.named_parameters()]
        owned = [frozenset(name for name in names if name.rpartition(".")[0] in group) for group in groups]
        whole, random = Piece.whole(model, input_shape, num_classes), is_random(module, model, input_shape)
        pieces = [LayerPiece(whole, each, random) for each in owned]
        return lambda submodel, round_: pieces[submodel]
