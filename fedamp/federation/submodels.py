"""Submodel schemes: which part of the model a unit trains, how that is noised, and what hiding it saves.

A round releases the noisy mean of every part of the model: of ``all`` of it, or of a ``shared`` and a ``split`` part
(Dong, Chen, Özgür 2025, section 3.2.2). docs/strategies.md says why the parts compose as they do here.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.accounting import Dropout, Mechanism, Submodels
from fedamp.federation import privacy
from fedamp.federation.check_in import UnitIds
from fedamp.models.architectures import check_masked, check_split, is_import_path
from fedamp.models.section import WHOLE, Model

if TYPE_CHECKING:  # it needs torch, and plans are made without
    from fedamp.models.pieces import Piece, Pieces


@dataclass(frozen=True)
class Part:
    """A part of the model that is clipped, noised and averaged by itself.

    Attributes:
        name: ``all``; or ``split``, after ``shared`` where something is.
        clip: clipping norm of a unit's update of this part.
        noise_multiplier: standard deviation of the noise over ``clip``.
        denominator: public expected number of contributors a round, by which the noisy sum is divided.
    """

    name: str
    clip: float
    noise_multiplier: float
    denominator: float

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on every coordinate of the sum."""
        return self.clip * self.noise_multiplier


class SubmodelScheme(ABC):
    """Which part of the model a unit trains.

    Attributes:
        scheme: its name in a scenario's ``submodels`` section, whose other keys are its fields.
        share: chance that a unit trains a given parameter of the split part; 1 where nothing is split.
        copies: disjoint submodels among which a unit's one is hidden.
        choices_are_all: whether :meth:`choices` are all there are.
    """

    scheme: ClassVar[str]
    choices_are_all: ClassVar[bool]

    @property
    @abstractmethod
    def share(self) -> float: ...

    @property
    @abstractmethod
    def copies(self) -> int: ...

    @abstractmethod
    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float) -> tuple[Part, ...]:
        """The parts of the model with their clipping, noise and denominators.

        Args:
            clip: norm of the whole update, or of its split part.
            noise_multiplier: of the whole update, or of its split part; 0 leaves all parts without noise.
            expected_cohort: expected number of units a round.
        """

    @abstractmethod
    def charge(self, part: Part, release: Mechanism) -> Mechanism:
        """What a part's release costs a unit of a round, if it costs ``release`` where nothing is hidden."""

    @abstractmethod
    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        """The hidden, independent, uniform submodel of every unit of a cohort; ``WHOLE``: none."""

    @abstractmethod
    def choices(self, masks: int) -> list[tuple[bytes, int]]:
        """(seed, submodel) of what can be drawn for a unit: all of it, or so many random masks; for an audit."""

    def cut_index(self, round_: int) -> int:
        """Number of the partition in use in a round; 0 where it is always the same."""
        return 0

    def a_piece(self, pieces: "Pieces") -> "Piece":
        """What some unit trains in the first round."""
        ((_, submodel), *_others) = self.choices(masks=1)
        return pieces(submodel, 1)

    def check(self, model: Model) -> None:
        """Refuse, without torch, a built-in model that cannot be cut so.

        Raises:
            ModelError: an unknown layer, or more submodels than nodes; one line that names the key.
        """
        return

    @abstractmethod
    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        """What units train of the scenario's model. The cut may be public; who trains which submodel is hidden.

        Args:
            seed: public seed of the partitions.

        Raises:
            ModelError: the model cannot be built, or not be cut so.
        """


@dataclass(frozen=True)
class WholeModel(SubmodelScheme):
    """Everybody trains the whole model."""

    scheme = "none"
    share = 1.0
    copies = 1
    choices_are_all = True

    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float) -> tuple[Part, ...]:
        return (Part("all", clip, noise_multiplier, expected_cohort),)

    def charge(self, part: Part, release: Mechanism) -> Mechanism:
        return release

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        return np.full(len(cohort), WHOLE)

    def choices(self, masks: int) -> list[tuple[bytes, int]]:
        return [(bytes(rng.SEED_BYTES), WHOLE)]

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        from fedamp.models.pieces import Piece

        whole = Piece.whole(model, input_shape, num_classes)
        return lambda submodel, round_: whole


@dataclass(frozen=True, kw_only=True)
class _SplitModel(SubmodelScheme):
    """A shared part (if any), whose release hides nothing, and a split part.

    Attributes:
        rest: what no node owns: ``shared``, ``dealt`` out like the nodes, or ``frozen``.
        shared_clip: clipping norm of the shared part; None: as the split part's.
        shared_noise_multiplier: of the shared part: ``same``, ``balanced`` or a number.
    """

    rest: str = "shared"
    shared_clip: float | None = None
    shared_noise_multiplier: str | float = "same"

    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float) -> tuple[Part, ...]:
        split = Part("split", clip, noise_multiplier, expected_cohort * self.share)
        if not self._has_shared_part:
            return (split,)
        shared_clip = clip if self.shared_clip is None else self.shared_clip
        return Part("shared", shared_clip, self._shared_noise(noise_multiplier), expected_cohort), split

    @property
    def _has_shared_part(self) -> bool:
        return self.rest == "shared"

    def _shared_noise(self, noise_multiplier: float) -> float:
        """Noise multiplier of the shared part, given the split part's.

        ``balanced`` minimises (s_shared / n_shared)^2 + (s_split / n_split)^2, where n are the denominators: the noise
        variance of one coordinate of each part's mean update, in units of that part's clipping norm. The budget that
        both share is 1 / s_shared^2 + 1 / (copies s_split^2), which is what a round costs where a round costs little
        (the mean of d copies of X has a d-th of the variance of X). With n_split = share * n_shared the best ratio of
        the two is (copies / share^2)^(1/4): d^(3/4) for d disjoint submodels. What is charged is exact for any ratio.
        """
        if noise_multiplier == 0 or self.shared_noise_multiplier == "same":
            return noise_multiplier
        if self.shared_noise_multiplier == "balanced":
            return noise_multiplier * float((self.copies / self.share**2) ** 0.25)
        return float(self.shared_noise_multiplier)

    def charge(self, part: Part, release: Mechanism) -> Mechanism:
        return self._hide(release) if part.name == "split" else release

    @abstractmethod
    def _hide(self, release: Mechanism) -> Mechanism:
        """What the split part's release costs a unit."""


@dataclass(frozen=True, kw_only=True)
class DisjointSubmodels(_SplitModel):
    """The split part is cut into ``count`` disjoint submodels; everybody trains a random one a round (ibid., Theorem
    3.4).

    Attributes:
        shared: layers that every submodel holds, by name or prefix.
        partition: ``fixed``, or ``fresh`` every round.
    """

    count: int
    shared: tuple[str, ...] = ()
    partition: str = "fixed"
    scheme = "disjoint"
    choices_are_all = True

    @property
    def share(self) -> float:
        return 1 / self.count

    @property
    def copies(self) -> int:
        return self.count

    @property
    def _has_shared_part(self) -> bool:
        return self.rest == "shared" or bool(self.shared)

    def _hide(self, release: Mechanism) -> Mechanism:
        return Submodels(release, self.count)

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        return rng.stream(seed, "submodels", round_).integers(self.count, len(cohort)).astype(np.int64)

    def choices(self, masks: int) -> list[tuple[bytes, int]]:
        return [(bytes(rng.SEED_BYTES), submodel) for submodel in range(self.count)]

    def cut_index(self, round_: int) -> int:
        return round_ if self.partition == "fresh" else 0

    def check(self, model: Model) -> None:
        check_split(model, self.count, self.shared)

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        from fedamp.models.pieces import Piece
        from fedamp.models.registry import is_random
        from fedamp.models.splits import split

        known = not is_import_path(model.name)
        whole = cache(lambda: Piece.whole(model, input_shape, num_classes))
        form = (model, input_shape, num_classes, self.count, self.shared)
        cut = lru_cache(1)(lambda index: split(*form, seed, index, self.rest))
        random = is_random(cut(0).full, model, input_shape)  # a model that cannot be cut is refused now
        part = lru_cache(self.count)(lambda submodel, index: cut(index).piece(submodel, known, random))
        return lambda submodel, round_: whole() if submodel == WHOLE else part(submodel, self.cut_index(round_))


@dataclass(frozen=True, kw_only=True)
class DropoutMasks(_SplitModel):
    """Every node of ``layers`` (empty: all hidden ones) is kept with probability ``keep``, in one mask a unit and
    round.
    """

    keep: float
    layers: tuple[str, ...] = ()
    scheme = "dropout"
    choices_are_all = False

    @property
    def share(self) -> float:
        return self.keep

    @property
    def copies(self) -> int:
        """Disjoint masks among which a unit's one is hidden (ibid., Corollary 3.7, extended)."""
        return max(1, math.floor(1 / self.keep))

    @property
    def probability(self) -> float:
        """Of keeping a node: ``keep``, or the number below it where so many disjoint masks would not fit otherwise: 0.1
        in floating point is more than a tenth.
        """
        return self.keep if self.copies * Fraction(self.keep) <= 1 else math.nextafter(self.keep, 0.0)

    def _hide(self, release: Mechanism) -> Mechanism:
        return Dropout(release, self.keep)

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        return np.full(len(cohort), WHOLE)  # each client draws its mask from its own seed

    def choices(self, masks: int) -> list[tuple[bytes, int]]:
        return [(seed, WHOLE) for seed in rng.client_seeds(0, "audited mask", 0, np.arange(masks)).tolist()]

    def check(self, model: Model) -> None:
        check_masked(model, self.layers)

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        from fedamp.models.masks import Masks
        from fedamp.models.pieces import MaskedPiece
        from fedamp.models.registry import build, is_random

        module = build(model, input_shape, num_classes)
        random = is_random(module, model, input_shape)
        masked = MaskedPiece(Masks(module, self.layers, self.rest), self.probability, random)
        return lambda submodel, round_: masked


SUBMODELS: dict[str, type[SubmodelScheme]] = {
    each.scheme: each for each in (WholeModel, DisjointSubmodels, DropoutMasks)
}


def submodels_of(section: privacy.Submodels) -> SubmodelScheme:
    """The scheme that a scenario's ``submodels`` section names."""
    return SUBMODELS[section.scheme](**section.model_dump(exclude={"scheme"}))
