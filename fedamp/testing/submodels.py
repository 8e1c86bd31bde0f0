"""The contract of submodel schemes: what a submodel does not own is silent, and the charge covers what hiding saves.

A unit's mask is found from updates that are one number everywhere: the rest of them shows it. An attacker then looks at
the coordinates that most units own.
"""

from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedamp.accounting import Gaussian, from_json
from fedamp.federation.submodels import Part, SubmodelScheme
from fedamp.models.model import Model
from fedamp.testing.contract import Contract, words_of_keys
from fedamp.testing.privacy import ERRORS, GROUPS, HiddenSets

PLACES = 8
"""Coordinates of the model that the attacker looks at."""


class SubmodelContract(Contract):
    """The tests of a submodel scheme.

    The scheme must meet all of them: (a) what a unit does not own is zero, whatever was trained; (b) a unit owns a
    coordinate of the split part with the probability of ``share``; (c) the charge of the split part covers an attack on
    its coordinates, and shared parts are charged without amplification; (d) draws follow from the seed.

    Attributes:
        scheme: the scheme, with its keys.
        model: the built-in model that is divided; small, because each unit's mask is listed.
        input_shape: shape of one record.
        classes: number of classes.
        units: number of units that draw a submodel, at least 2,000.

    Example:
        >>> from fedamp.federation.submodels import DisjointSubmodels
        >>> class TestThree(SubmodelContract):
        ...     scheme = DisjointSubmodels(scheme="disjoint", count=3)
        >>> TestThree().test_a_mask_follows_from_the_draw_and_the_seed_alone()
    """

    scheme: ClassVar[SubmodelScheme]
    model: ClassVar[Model] = Model(name="mlp", hidden=(12,))
    input_shape: ClassVar[tuple[int, ...]] = (4,)
    classes: ClassVar[int] = 3
    units: ClassVar[int] = 2000

    @classmethod
    def subject(cls) -> type | None:
        """Return the class of the scheme, which is noted as passed once all tests have."""
        return type(cls.scheme)

    @classmethod
    def keys_in_words(cls) -> str:
        """Return the keys of the scheme."""
        return ", ".join(words_of_keys(cls.scheme))

    def updates(self, seed: int, scale: float = 1.0, units: int = 0, round_: int = 1) -> NDArray[np.float64]:
        """Return the parts that units keep of updates of one number everywhere.

        Args:
            seed: of the draw, and of the units' own seeds.
            scale: the number.
            units: number of units; 0: that of the suite.
            round_: number of the round.

        Returns:
            Shape [units, coordinates of the split part].
        """
        units = units or self.units
        cohort, seeds = np.arange(units), _seeds(units, seed)
        drawn = self.scheme.draw(cohort, seed, round_)
        pieces = self.scheme.pieces(self.model, self.input_shape, self.classes, seed=5)
        whole = self._shapes(pieces(int(drawn[0]), round_))
        kept = np.zeros((units, sum(map(int, map(np.prod, whole.values())))))
        for submodel in np.unique(drawn):
            piece, own = pieces(int(submodel), round_), np.flatnonzero(drawn == submodel)
            named = [(name, value) for name, value in piece.module.named_parameters() if name not in piece.frozen]
            given = {name: torch.full((len(own), *value.shape), scale) for name, value in named}
            owned = piece.owned(given, seeds[own])
            for row, unit in enumerate(own):
                total = {name: np.zeros(shape) for name, shape in whole.items()}
                piece.embed_add(total, {name: update[row].numpy() for name, update in owned.items()})
                split = [array.ravel() for name, array in total.items() if name not in piece.shared]
                flat = np.concatenate(split)
                kept[unit, : len(flat)] = flat
        return kept

    def _shapes(self, piece: object) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the whole model's trainable parameters, by name."""
        from fedamp.models.networks import build

        frozen: frozenset[str] = getattr(piece, "frozen", frozenset())
        module = build(self.model, self.input_shape, self.classes)
        return {name: tuple(value.shape) for name, value in module.named_parameters() if name not in frozen}

    def split_part(self, noise_multiplier: float) -> Part:
        """Return the part whose release is amplified: the last one."""
        return self.scheme.parts(1.0, noise_multiplier, 30.0, self.units)[-1]

    def test_the_simulation_is_large_enough(self) -> None:
        """Fewer units would hardly show a charge that is too small."""
        assert self.units >= SubmodelContract.units, (
            f"units must be at least {SubmodelContract.units}, got {self.units}"
        )

    def test_the_last_part_keeps_the_given_norm_and_noise(self) -> None:
        """The split part is last; it has the given norm and noise, and its own expected denominator."""
        parts = self.scheme.parts(0.5, 1.5, 30.0, self.units)
        assert (parts[-1].clip, parts[-1].noise_multiplier) == (0.5, 1.5)
        assert parts[-1].denominator == pytest.approx(30 * self.scheme.training_share(self.units))
        assert all(part.noise_multiplier == 0 for part in self.scheme.parts(0.5, 0.0, 30.0, self.units))

    def test_a_mask_follows_from_the_draw_and_the_seed_alone(self) -> None:
        """A coordinate that a unit does not own is zero, whatever was trained; one that it owns is not changed."""
        one, other = self.updates(seed=1), self.updates(seed=1, scale=-7.0)
        assert np.array_equal(one != 0, other != 0)
        assert set(np.unique(one)) <= {0.0, 1.0}
        assert set(np.unique(other)) <= {-7.0, 0.0}

    def test_units_own_as_much_as_the_denominator_expects(self) -> None:
        """The mean update divides by the expected number of units that train a coordinate of the split part."""
        owned = np.stack([self.updates(seed=2, units=200, round_=round_) != 0 for round_ in range(1, 13)])
        owned = owned[:, :, owned.any(axis=(0, 1))]
        # Submodels are of equal size up to one node of each layer.
        error = owned.mean(axis=2).std() / np.sqrt(200) + 0.5 / owned.shape[2]
        assert abs(owned.mean() - self.scheme.training_share(200)) <= ERRORS * error

    @pytest.mark.parametrize("noise_multiplier", [0.5, 1.0])
    def test_the_charge_covers_an_attack_on_the_coordinates(self, noise_multiplier: float) -> None:
        """At the charged epsilon no attack has a larger delta.

        Each unit puts its whole update into one coordinate that it owns: the one that most units own is first.
        """
        charged = self.scheme.charge(self.split_part(noise_multiplier), Gaussian(noise_multiplier))
        assert from_json(charged.to_json()) == charged
        deltas = (0.1, 1e-2)
        epsilons = np.array([charged.epsilon(delta).upper for delta in deltas])
        shown = _first_owned(self.updates(seed=3) != 0)
        groups = np.array_split(shown, GROUPS)
        sets = np.eye(PLACES + 1)[:, :PLACES]  # the last row: it owns none of the coordinates that are looked at
        chances = np.array([np.bincount(group, minlength=PLACES + 1) / len(group) for group in groups])
        found = HiddenSets(sets, chances).gaussian(noise_multiplier, epsilons)
        for delta, epsilon, each in zip(deltas, epsilons, found, strict=True):
            assert each.at_least <= delta, (
                f"an attack has delta {each.value:.3g} at epsilon {epsilon:.4g}, which is charged for {delta:g}"
            )

    def test_hiding_costs_nothing_and_a_shared_part_is_not_hidden(self) -> None:
        """A shared part is charged as it is; the split part costs at most as much as without amplification."""
        release = Gaussian(0.8)
        *shared, last = self.scheme.parts(0.5, 0.8, 30.0, self.units)
        assert all(self.scheme.charge(part, release) == release for part in shared)
        charged = self.scheme.charge(last, release)
        assert charged.unamplified() == release
        assert charged.epsilon(1e-5).upper <= release.epsilon(1e-5).upper * (1 + 1e-9)

    def test_the_draw_follows_from_the_seed_alone(self) -> None:
        """The same seed and round give the same submodels, one for each unit of the cohort."""
        cohort = np.arange(100)
        draws = [self.scheme.draw(cohort, seed, round_) for seed, round_ in ((1, 1), (1, 1))]
        assert np.array_equal(draws[0], draws[1])
        assert draws[0].shape == cohort.shape

    def test_the_draws_of_rounds_are_independent(self) -> None:
        """A submodel that lasts for several rounds is one hidden choice, and each round is charged as another one.

        Draws of a unit in two rounds have no covariance over seeds, beyond the simulation's error.
        """
        units, seeds = np.arange(24), 400
        drawn = np.array([[self.scheme.draw(units, seed, round_) for round_ in (1, 2)] for seed in range(seeds)])
        for number in np.unique(drawn):
            taken = (drawn == number) - (drawn == number).mean(axis=0)
            covariance = abs(float((taken[:, 0] * taken[:, 1]).mean()))
            assert covariance <= ERRORS * 0.25 / np.sqrt(seeds * len(units)), (
                f"units that draw submodel {number} in a round draw it in the next one too often, or too seldom"
            )


def _seeds(units: int, seed: int) -> NDArray[np.void]:
    """Return a seed of 32 bytes for each unit, as clients get them."""
    drawn = np.random.default_rng(seed).bytes(32 * units)
    return np.frombuffer(drawn, "V32")


def _first_owned(masks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the place of each unit among the coordinates that an attacker looks at.

    Coordinates are taken greedily: each next one is the one that most of the remaining units own. ``PLACES``: a unit
    owns none of them.

    Args:
        masks: [units, coordinates].
    """
    shown, left = np.full(len(masks), PLACES), np.ones(len(masks), dtype=bool)
    for place in range(PLACES):
        best = int(masks[left].sum(axis=0).argmax()) if left.any() else 0
        chosen = left & masks[:, best]
        shown[chosen], left = place, left & ~chosen
    return shown
