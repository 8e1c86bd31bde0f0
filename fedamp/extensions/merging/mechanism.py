"""Merged models: the released sum of several privately trained ones (Yin, Zaheer, Li 2026).

The module has one kind, with two charges. docs/research/papers/merging.md shows how people merge models.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedamp.accounting.bounds import OnePer, Relation, check_positive, check_sequence
from fedamp.accounting.hidden import Poisson
from fedamp.accounting.mechanism import Fact, Mechanism, check_mechanisms, outcomes_of
from fedamp.accounting.outcomes import Outcomes
from fedamp.accounting.releases import NOTHING, Compose, Gaussian, GaussianMixture, Repeat

JOINT_RELEASE = "joint release"
FIXED_GRADIENTS = "gradients do not depend on the models"


@dataclass(frozen=True)
class LinearCombination(Mechanism):
    """Release the sum of weighted models, each trained privately on the same data with its own fresh randomness.

    Release: w_1 M_1 + .. + w_n M_n.

    The default charge is for the release of all models with non-zero weight (Yin, Zaheer, Li 2026, Theorem 6.1). The
    paper's cheaper charge for each step (Theorems 6.2 and 6.4, Corollary 6.5) does not hold as stated. It is
    conditional on the trajectories of all models, which are not released. It holds if gradients do not depend on the
    models (a single step, or mean estimation). It must be asked for by that assumption, which stays recorded in the
    mechanism.

    Args:
        mechanisms: one training run for each model.
        weights: w_i >= 0, one for each model; they sum to 1, and do not depend on the data.
        assumption: ``JOINT_RELEASE`` ("joint release"), or ``FIXED_GRADIENTS`` ("gradients do not depend on the
            models"), which needs every run to be ``Repeat(Poisson(Gaussian(s), q), T)`` or ``Repeat(Gaussian(s), T)``
            with one T.
        scales: learning rate times clipping norm of each model's steps, > 0; only for the second assumption.

    Raises:
        ValueError: the assumption is unknown, or the runs are not of its form.

    Example:
        >>> from fedamp.accounting import FIXED_GRADIENTS, JOINT_RELEASE
        >>> models, weights = [Gaussian(3.0), Gaussian(4.0)], [0.5, 0.5]
        >>> print(LinearCombination(models, weights, JOINT_RELEASE).epsilon(1e-5))
        1.628 (at least 0)
        >>> print(LinearCombination(models, weights, FIXED_GRADIENTS, scales=[1.0, 1.0]).epsilon(1e-5))
        1.555 (at least 1.554)
    """

    mechanisms: Annotated[Sequence[Mechanism], check_mechanisms]
    weights: Annotated[Sequence[float], OnePer("mechanisms")]
    assumption: str = JOINT_RELEASE
    scales: Sequence[float] = ()
    own_facts = (Fact.HIDES_PARTS,)

    def check(self) -> None:
        """Check the assumption, and that runs and scales are of its form (ValueError)."""
        self._set_fields(scales=tuple(check_positive("scales", each) for each in check_sequence("scales", self.scales)))
        if self.assumption not in (JOINT_RELEASE, FIXED_GRADIENTS):
            expected = f'"{JOINT_RELEASE}" or "{FIXED_GRADIENTS}"'
            raise ValueError(f"assumption must be {expected}, got {self.assumption!r}")
        if self.assumption == FIXED_GRADIENTS:
            if len(self.scales) != len(self.mechanisms):
                raise ValueError(f"scales must have {len(self.mechanisms)} entries, got {len(self.scales)}")
            if len(self.mechanisms) > 12:
                raise ValueError(f"mechanisms must be at most 12 under this assumption, got {len(self.mechanisms)}")
            self.training_steps()

    @property
    def in_words(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        combined = " + ".join(f"{weight:g} x ({part.in_words})" for weight, part in pairs)
        return f"merged model {combined}, charged under: {self.assumption}"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0)

    def training_steps(self) -> tuple[int, list[tuple[float, float]]]:
        """Return the number of steps, and each model's noise multiplier and sampling rate.

        Raises:
            ValueError: a run is not of the form that the second assumption needs.
        """
        found = []
        for run in self.mechanisms:
            times, step = (run.times, run.mechanism) if isinstance(run, Repeat) else (1, run)
            rate, base = (step.rate, step.mechanism) if isinstance(step, Poisson) else (1.0, step)
            if not isinstance(base, Gaussian) or base.largest_change != 1:
                expected = "repeated (Poisson sampled) Gaussians under this assumption"
                raise ValueError(f"mechanisms must be {expected}, got {run}")
            found.append((times, (base.noise_multiplier, rate)))
        if len({times for times, _ in found}) != 1:
            raise ValueError("mechanisms must all have the same number of steps under this assumption")
        return found[0][0], [step for _, step in found]

    def simplified(self) -> Mechanism:
        """A single model under the joint release is that model's run."""
        alone = self.assumption == JOINT_RELEASE and max(self.weights) == 1
        return self.mechanisms[self.weights.index(1)] if alone else self

    def unamplified(self) -> Mechanism:
        """Return all models' runs without amplification, one after another."""
        return Compose(tuple(part.unamplified() for part in self.mechanisms))

    def charged_as(self) -> Mechanism:
        """Charge all models together, or each step under the second assumption.

        See the class for both charges (Yin, Zaheer, Li 2026, Theorem 6.1, or 6.2 and 6.4 under its assumption). A step
        is one Gaussian around the sum of the contributions of the models that sampled the person, of 2^n possible
        shifts.
        """
        if self.assumption == JOINT_RELEASE:
            used = tuple(part for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0)
            return Compose(used or (NOTHING,))
        times, steps = self.training_steps()
        sizes = [weight * scale for weight, scale in zip(self.weights, self.scales, strict=True)]
        noise = math.hypot(*(size * multiplier for size, (multiplier, _) in zip(sizes, steps, strict=True)))
        sums, chances = np.zeros(1), np.ones(1)  # over all subsets of the models that a person's data may be in
        for size, (_, rate) in zip(sizes, steps, strict=True):
            sums = np.concatenate([sums, sums + size / noise])
            chances = np.concatenate([chances * (1 - rate), chances * rate])
        relation = self.relation or Relation.ZERO_OUT
        return Repeat(GaussianMixture(sums.tolist(), chances.tolist(), relation=relation), times)

    def attained_mechanism(self) -> Mechanism | None:
        """The merged model may hide its parts: under the joint release nothing is known."""
        return None if self.assumption == JOINT_RELEASE and len(self.mechanisms) > 1 else self

    def product_factors(self, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
        return (
            self.charged_as().product_factors(times)
            if self.assumption == JOINT_RELEASE
            else super().product_factors(times)
        )

    def all_outcomes(self) -> Outcomes:
        """Return the outcomes of the charged mechanism: the merged model may tell less."""
        return outcomes_of(self.charged_as())
