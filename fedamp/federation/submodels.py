"""Submodel schemes: decide which part of the model a unit trains, how it is noised, and how much hiding it saves.

A section of a scenario is the scheme itself. A round releases the noisy mean of every part of the model: of ``all`` of
it, or of a ``shared`` and a ``split`` part (Dong, Chen, Özgür 2025, section 3.2.2). docs/research/schemes.md says why
the parts compose as they do here.

A further scheme is one class here and its name in ``SUBMODELS``. How a network is cut, masked and put together again is
in :mod:`fedamp.models.pieces`; a plan asks a scheme for parts and charge, a client for its piece.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from fedamp import rng
from fedamp.base import ids
from fedamp.base.section import NoiseMultiplier, Positive, Share, removed, renamed
from fedamp.base.start import Later
from fedamp.federation import facts
from fedamp.federation.check_in import UnitIds
from fedamp.federation.facts import Claim, Declared
from fedamp.models.architectures import check_masked, check_split
from fedamp.models.custom import is_import_path
from fedamp.models.model import WHOLE, Model

if TYPE_CHECKING:  # the pieces need torch, and plans are made without
    from fedamp import accounting
    from fedamp.accounting import Mechanism
    from fedamp.models.pieces import Piece, Pieces
else:
    accounting = Later("fedamp.accounting")  # as in fedamp.federation.check_in


@dataclass(frozen=True)
class Part:
    """A part of the model that is clipped, noised and averaged by itself; a ledger holds it as it is.

    Attributes:
        name: ``all``; or ``split``, after ``shared`` where something is.
        clip: clipping norm of a unit's update of this part.
        noise_multiplier: standard deviation of the noise over ``clip``.
        denominator: public expected number of contributors a round, by which the noisy sum is divided.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    clip: float
    noise_multiplier: float
    denominator: float

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on every coordinate of the sum: clip x noise_multiplier."""
        return self.clip * self.noise_multiplier


class SubmodelScheme(Declared, ABC):
    """Base of the schemes that decide which part of the model a unit trains.

    Attributes:
        scheme: its name in a scenario.
        copies: number of disjoint submodels among which a unit's submodel is hidden; 1: none is hidden.
        choices_are_all: whether :meth:`possible_draws` lists all possible submodels.
        capacities: names of public classes of units that pay differently, the most first; empty: all pay alike.
    """

    scheme: str
    choices_are_all: ClassVar[bool]
    concerns = frozenset({facts.WHOLE_MODEL})

    @property
    @abstractmethod
    def copies(self) -> int: ...

    @property
    def capacities(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def training_share(self, units: int) -> float:
        """Compute the probability that a unit trains a given parameter of the split part; 1 without a split part."""

    @abstractmethod
    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float, units: int) -> tuple[Part, ...]:
        """Make the parts of the model with their clipping norms, noise and denominators.

        Args:
            clip: norm of the whole update, or of its split part.
            noise_multiplier: that of the whole update, or of its split part; 0 leaves all parts without noise.
            expected_cohort: expected number of units a round.
            units: of the federation.
        """

    @abstractmethod
    def charge(self, part: Part, release: "Mechanism", capacity: str | None = None) -> "Mechanism":
        """Make the cost of a part's release for a unit of a round.

        Args:
            part: one of :meth:`parts`.
            release: the cost of the release if the submodel were known.
            capacity: a class of :attr:`capacities`; default: the one that pays the most.
        """

    @abstractmethod
    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        """Draw the submodel of every unit of a cohort, independently of each other.

        Args:
            cohort: ids of the units.
            seed: of the run; each round has a stream of its own.
            round_: from 1.

        Returns:
            Numbers of submodels, shape [cohort]; ``WHOLE`` for a unit that is sent the whole model.
        """

    @abstractmethod
    def possible_draws(self, masks: int, round_: int = 1) -> list[tuple[bytes, int]]:
        """List the possible draws of a unit that pays the most: an audit attacks them, and their pieces are measured.

        Args:
            masks: how many random masks to list where there are too many submodels to list all.
            round_: from 1.

        Returns:
            Pairs (seed of the client, number of the submodel).
        """

    def submodel_frequencies(self, units: int) -> list[tuple[float, int]]:
        """List how often a unit trains each submodel: pairs (share of its check-ins, number of the submodel)."""
        return [(1.0, WHOLE)]

    def cut_index(self, round_: int) -> int:
        """Return the number of the partition in use in a round; 0 where it is always the same."""
        return 0

    def a_piece(self, pieces: "Pieces") -> "Piece":
        """Return the submodel that some unit trains in the first round: what is measured once stands for all."""
        ((_, submodel), *_others) = self.possible_draws(masks=1)
        return pieces(submodel, 1)

    def check_model(self, model: Model) -> None:
        """Refuse, without torch, a built-in model that cannot be cut so.

        Raises:
            ModelError: an unknown layer, or more submodels than nodes; one line that names the key.
        """
        return

    @abstractmethod
    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        """Cut the scenario's model into its submodels.

        The cut may be public; which unit trains which submodel is hidden.

        Args:
            model: the section of the scenario.
            input_shape: of one record.
            num_classes: size of the last layer.
            seed: public seed of the partitions.

        Returns:
            A function of submodel and round that gives the piece.

        Raises:
            ModelError: the model cannot be built, or not be cut so.
        """


class NoSubmodels(SubmodelScheme):
    """Every unit trains the whole model."""

    scheme: Literal["none"] = "none"
    copies: ClassVar[int] = 1
    choices_are_all = True
    keeps = frozenset({facts.WHOLE_MODEL})

    def training_share(self, units: int) -> float:
        return 1.0

    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float, units: int) -> tuple[Part, ...]:
        return (Part("all", clip, noise_multiplier, expected_cohort),)

    def charge(self, part: Part, release: "Mechanism", capacity: str | None = None) -> "Mechanism":
        return release

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        return np.full(len(cohort), WHOLE)

    def possible_draws(self, masks: int, round_: int = 1) -> list[tuple[bytes, int]]:
        return [(bytes(rng.SEED_BYTES), WHOLE)]

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        from fedamp.models.pieces import Piece

        whole = Piece.whole(model, input_shape, num_classes)
        return lambda submodel, round_: whole


class _SplitModel(SubmodelScheme):
    """Base of schemes with a split part, whose submodel is hidden, and perhaps a shared part without amplification."""

    unowned: Annotated[Literal["shared", "partitioned", "frozen"], *renamed("unowned", "rest", partitioned="dealt")] = (
        Field(
            "shared",
            description="parameters that no node owns, such as the output's bias: in the shared part; partitioned "
            "(each belongs to one submodel, like the nodes); or frozen. Without a shared part a round releases one "
            "part and costs less",
        )
    )
    shared_clip: Positive | None = Field(None, description="clipping norm of the shared part; default: privacy.clip")
    shared_noise_multiplier: Literal["same", "balanced"] | NoiseMultiplier = Field(
        "same",
        description="noise multiplier of the shared part: same as the split part; balanced: the split of the budget "
        "with the least noise in the two parts' mean updates together (docs/research/schemes.md); or a number",
    )

    needs = (
        Claim(
            facts.CLIPS_APART,
            "shared_clip",
            "left out",
            lambda scenario: scenario.submodels.shared_clip is not None,
        ),
    )

    @model_validator(mode="after")
    def _no_key_without_a_shared_part(self) -> "_SplitModel":
        """Refuse keys of the shared part where nothing is shared."""
        given = ["shared_clip"] * (self.shared_clip is not None)
        given += ["shared_noise_multiplier"] * (self.shared_noise_multiplier != "same")
        if given and not self._has_shared_part:
            raise ValueError(f"{given[0]} must be left out with unowned: {self.unowned}: nothing is shared")
        return self

    def parts(self, clip: float, noise_multiplier: float, expected_cohort: float, units: int) -> tuple[Part, ...]:
        share = self.training_share(units)
        split = Part("split", clip, noise_multiplier, expected_cohort * share)
        if not self._has_shared_part:
            return (split,)
        shared_clip = clip if self.shared_clip is None else self.shared_clip
        return Part("shared", shared_clip, self._shared_noise(noise_multiplier, share), expected_cohort), split

    @property
    def _has_shared_part(self) -> bool:
        """Say whether a round releases a shared part beside the split one."""
        return self.unowned == "shared"

    def _shared_noise(self, noise_multiplier: float, share: float) -> float:
        """Compute the noise multiplier of the shared part from that of the split part.

        ``balanced`` minimises (s_shared / n_shared)^2 + (s_split / n_split)^2, where n are the denominators: the noise
        variance of one coordinate of each part's mean update, in units of that part's clipping norm. The budget that
        both share is 1 / s_shared^2 + 1 / (copies s_split^2), which is what a round costs where a round costs little
        (the mean of d copies of X has a d-th of the variance of X). With n_split = share * n_shared the best ratio of
        the two is (copies / share^2)^(1/4): d^(3/4) for d disjoint submodels. The charge is exact for any ratio.

        Args:
            noise_multiplier: that of the split part.
            share: probability that a unit trains a given parameter of the split part.
        """
        if noise_multiplier == 0 or self.shared_noise_multiplier == "same":
            return noise_multiplier
        if self.shared_noise_multiplier == "balanced":
            return noise_multiplier * float((self.copies / share**2) ** 0.25)
        return float(self.shared_noise_multiplier)

    def charge(self, part: Part, release: "Mechanism", capacity: str | None = None) -> "Mechanism":
        return self._hidden_charge(release, capacity) if part.name == "split" else release

    @abstractmethod
    def _hidden_charge(self, release: "Mechanism", capacity: str | None) -> "Mechanism":
        """Make the cost of the split part's release for a unit, from that of a known submodel."""


class DisjointSubmodels(_SplitModel):
    """The split part is cut into ``count`` disjoint submodels; a unit trains a random one a round (Theorem 3.4).

    The theorem is that of Dong, Chen, Özgür 2025. Each submodel is a smaller network: it costs less work and fewer
    bytes. Units of a public class (``whole``) train the whole model, so that their submodel is not hidden: they pay the
    most.
    """

    scheme: Literal["disjoint"]
    count: Annotated[int, Field(ge=2, strict=True, examples=[3], description="number of disjoint submodels")]
    shared: tuple[str, ...] = Field((), description="layers that every submodel holds, by name or prefix")
    partition: Literal["fixed", "fresh"] = Field("fixed", description="one partition for the run, or a new one a round")
    assignment: Annotated[
        Literal["random", "rolling", "static"], *renamed("assignment", "choice", static="ordered")
    ] = Field(
        "random",
        description="which submodel a unit trains: a random one, hidden; rolling: one after the other (FedRolex), or "
        "static: always the first (HeteroFL), which hide nothing",
        exclude_if=lambda assignment: assignment == "random",
    )
    whole: Share | Annotated[str, Field(pattern=ids.PATTERN)] | None = Field(
        None,
        description="units whose devices train the whole model, a public class: ids such as 0-9,12, or a share of all, "
        "evenly spread over the ids",
        exclude_if=lambda whole: whole is None,
    )
    choices_are_all = True

    @model_validator(mode="after")
    def _whole_are_ids(self) -> "DisjointSubmodels":
        """Refuse a range of ids that ends before it begins."""
        try:
            self._are_whole(np.zeros(1, np.int64))
        except ValueError as error:
            raise ValueError(f"whole {error}, or a share") from None
        return self

    def training_share(self, units: int) -> float:
        among = ids.ranges(self.whole) if isinstance(self.whole, str) else None
        number = int(np.ceil(units * (self.whole or 0.0))) if among is None else ids.how_many(among, units)
        return number / units + (1 - number / units) / self.count

    @property
    def copies(self) -> int:
        return self.count if self.assignment == "random" and self.whole is None else 1

    @property
    def capacities(self) -> tuple[str, ...]:
        return () if self.whole is None else ("whole", f"1/{self.count}")

    def submodel_frequencies(self, units: int) -> list[tuple[float, int]]:
        whole = (self.training_share(units) * self.count - 1) / (self.count - 1)
        numbers = [0] if self.assignment == "static" else range(self.count)
        submodels = [((1 - whole) / len(numbers), number) for number in numbers]
        return [(whole, WHOLE), *submodels] if self.whole is not None else submodels

    def _are_whole(self, units: UnitIds) -> NDArray[np.bool_]:
        """Say which units are of the class that trains the whole model; shape as ``units``."""
        if isinstance(self.whole, str):
            return ids.members(units, ids.ranges(self.whole))
        share = self.whole or 0.0
        return np.asarray(np.ceil((units + 1) * share) > np.ceil(units * share))

    @property
    def _has_shared_part(self) -> bool:
        """Say whether layers, or parameters that no node owns, are in a shared part."""
        return self.unowned == "shared" or bool(self.shared)

    def _hidden_charge(self, release: "Mechanism", capacity: str | None) -> "Mechanism":
        """Credit the hidden choice among ``count`` submodels, except to a unit whose submodel is known."""
        is_whole = self.whole is not None and capacity in (None, "whole")
        return release if is_whole or self.assignment != "random" else accounting.Submodels(release, self.count)

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        drawn = rng.stream(seed, "submodels", round_).integers(self.count, len(cohort)).astype(np.int64)
        if self.assignment != "random":
            drawn[:] = self._known_submodel(round_)
        drawn[self._are_whole(cohort)] = WHOLE
        return drawn

    def _known_submodel(self, round_: int) -> int:
        """Return the submodel that all units train in a round, where nothing hides it."""
        return (round_ - 1) % self.count if self.assignment == "rolling" else 0

    def possible_draws(self, masks: int, round_: int = 1) -> list[tuple[bytes, int]]:
        known = [WHOLE] if self.whole is not None else [self._known_submodel(round_)]
        hidden = self.assignment == "random" and self.whole is None
        return [(bytes(rng.SEED_BYTES), submodel) for submodel in (range(self.count) if hidden else known)]

    def cut_index(self, round_: int) -> int:
        return round_ if self.partition == "fresh" else 0

    def check_model(self, model: Model) -> None:
        check_split(model, self.count, self.shared)

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        from fedamp.models.networks import build, is_random
        from fedamp.models.pieces import Piece, Split

        module, known = build(model, input_shape, num_classes), not is_import_path(model.name)
        random = is_random(module, model, input_shape)
        cut = lru_cache(1)(lambda index: Split(module, self.count, self.shared, seed, index, self.unowned))
        cut(0)  # a model that cannot be cut is refused now
        part = lru_cache(self.count)(lambda submodel, index: cut(index).piece(submodel, known, random))
        whole = Piece(module, cut(0).shared, known, random)
        whole.frozen = cut(0).frozen
        whole.owns_all = not whole.frozen
        return lambda submodel, round_: whole if submodel == WHOLE else part(submodel, self.cut_index(round_))


class DropoutSubmodels(_SplitModel):
    """Every node of the hidden layers is kept with probability ``keep``, in one mask a unit and round.

    A client draws its mask from its own seed, and trains the whole network with it: fewer parameters, but no less work.
    """

    scheme: Literal["dropout"]
    keep: Share = Field(0.5, examples=[0.3], description="probability that a node is kept in a mask")
    layers: Annotated[tuple[str, ...], *removed((), "all hidden layers")] = ()
    choices_are_all = False

    def training_share(self, units: int) -> float:
        return self.keep

    @property
    def copies(self) -> int:
        """Number of disjoint masks among which a unit's mask is hidden (Dong et al. 2025, Corollary 3.7, extended)."""
        return max(1, math.floor(1 / self.keep))

    @property
    def keeping_probability(self) -> float:
        """Probability of keeping a node: ``keep``, or the next smaller number if so many disjoint masks would not fit.

        For instance 0.1 in floating point is more than a tenth.
        """
        return self.keep if self.copies * Fraction(self.keep) <= 1 else math.nextafter(self.keep, 0.0)

    def _hidden_charge(self, release: "Mechanism", capacity: str | None) -> "Mechanism":
        """Credit the hidden mask."""
        return accounting.Dropout(release, self.keep)

    def draw(self, cohort: UnitIds, seed: int, round_: int) -> NDArray[np.int64]:
        return np.full(len(cohort), WHOLE)  # each client draws its mask from its own seed

    def possible_draws(self, masks: int, round_: int = 1) -> list[tuple[bytes, int]]:
        return [(seed, WHOLE) for seed in rng.client_seeds(0, "audited mask", 0, np.arange(masks)).tolist()]

    def check_model(self, model: Model) -> None:
        check_masked(model)

    def pieces(self, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> "Pieces":
        from fedamp.models.masks import Masks
        from fedamp.models.networks import build, is_random
        from fedamp.models.pieces import MaskedPiece

        module = build(model, input_shape, num_classes)
        random = is_random(module, model, input_shape)
        masked = MaskedPiece(Masks(module, self.unowned), self.keeping_probability, random)
        return lambda submodel, round_: masked


SUBMODELS: tuple[type[SubmodelScheme], ...] = (NoSubmodels, DisjointSubmodels, DropoutSubmodels)
