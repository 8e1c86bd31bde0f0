"""The two directions of sampling k of T: which proposals there are, and which is the best."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedamp.accounting.certificate import Pilot, best
from fedamp.accounting.tilted import AddProposal, Proposal, Release, RemoveProposal

HIGHEST_ORDER = 16

_WIDE = 2.5
"""Standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches."""

_DRIFTS = (1.5, 4, 10, 25)
"""Drifts to try, in units of k / T: each adds so much to the order, were X the power k / T of the product of ratios."""


class Remove:
    """H(P, Q)."""

    def pilot(self, release: Release, look: Callable[[Proposal], Pilot]) -> Pilot:
        """The best order, and, where that leaves a wide spread, the best drift beside it."""
        found = best(look(RemoveProposal(release, order)) for order in range(2, HIGHEST_ORDER + 1))
        if found.spread < _WIDE or not isinstance(found.proposal, RemoveProposal):
            return found
        order, share = found.proposal.order, release.k / release.rounds
        drifted = [look(RemoveProposal(release, order, drift * share)) for drift in _DRIFTS]
        return min([found, *drifted], key=lambda pilot: pilot.effort)

    def same(self, proposal: Proposal, release: Release) -> Proposal:
        """The proposal, of another release."""
        assert isinstance(proposal, RemoveProposal)
        return RemoveProposal(release, proposal.order, proposal.drift)

    def share(self, release: Release) -> float:
        """P-mass at an infinite ratio: at most k rounds can meet it."""
        return -math.expm1(min(release.k, release.released) * math.log1p(-release.round.infinite))


@dataclass(frozen=True)
class Add:
    """H(Q, P), around some epsilon."""

    near: float

    def pilot(self, release: Release, look: Callable[[Proposal], Pilot]) -> Pilot:
        """The best tilt, from that of the least bound down."""
        candidates = [AddProposal(release, 2.0**power) for power in np.arange(-14, 6, 0.5)]
        least = int(np.argmin([proposal.log_bound(self.near) for proposal in candidates]))
        return best(look(proposal) for proposal in candidates[least::-1])

    def same(self, proposal: Proposal, release: Release) -> Proposal:
        """The proposal, of another release."""
        assert isinstance(proposal, AddProposal)
        return AddProposal(release, proposal.tilt)

    def share(self, release: Release) -> float:
        """Q-mass at ratio 0, of any round."""
        return -math.expm1(release.released * math.log1p(-release.round.zero))
