"""The two directions of sampling hidden rounds: which proposals there are, and which is the best."""

import math
from collections.abc import Callable

import numpy as np

from fedamp.accounting.certificate import Pilot, best
from fedamp.accounting.hidden_rounds import Run
from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.tilted import AddProposal, Proposal, RemoveProposal

HIGHEST_ORDER = 16

_WIDE = 2.5
"""Standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches."""

_DRIFTS = (1.5, 4.0, 10.0, 25.0)
"""Drifts to try; each adds so much to the order, were X a constant times G."""

Rank = Callable[[Proposal], float]
"""What a proposal's bound alone proves about the answer: the smaller, the better the proposal."""


class Remove:
    """H(P, Q)."""

    def pilot(self, run: Run, rank: Rank, look: Callable[[Proposal], Pilot]) -> Pilot:
        """Of the order whose bound is the least, or the one below it; where that leaves a wide spread, of the best
        drift beside it.
        """
        order = self.by_moments(run, rank).order
        found = best(look(RemoveProposal(run, each)) for each in range(order, max(order - 2, 1), -1))
        if found.spread < _WIDE or not isinstance(found.proposal, RemoveProposal):
            return found
        drifted = [look(RemoveProposal(run, found.proposal.order, drift)) for drift in _DRIFTS]
        return min([found, *drifted], key=lambda pilot: pilot.effort)

    def by_moments(self, run: Run, rank: Rank) -> RemoveProposal:
        """The order whose bound is the least."""
        found = RemoveProposal(run, 2)
        for order in range(3, HIGHEST_ORDER + 1):
            try:
                proposal = RemoveProposal(run, order)
            except NotEvaluable:
                break
            if rank(proposal) >= rank(found):
                break
            found = proposal
        return found

    def same(self, proposal: Proposal, run: Run) -> Proposal:
        """The proposal, of another run."""
        assert isinstance(proposal, RemoveProposal)
        return RemoveProposal(run, proposal.order, proposal.drift)

    def share(self, run: Run) -> float:
        """P-mass at infinite ratios, which only rounds taken part in can meet."""
        return -math.expm1(sum(f.copies * f.most * math.log1p(-f.round.infinite) for f in run.factors))


class Add:
    """H(Q, P)."""

    def pilot(self, run: Run, rank: Rank, look: Callable[[Proposal], Pilot]) -> Pilot:
        """Of the best tilt, from that of the least bound down."""
        candidates = [AddProposal(run, 2.0**power) for power in np.arange(-10, 10, 0.5)]
        least = int(np.argmin([rank(proposal) for proposal in candidates]))
        return best(look(proposal) for proposal in candidates[least::-1])

    def same(self, proposal: Proposal, run: Run) -> Proposal:
        """The proposal, of another run."""
        assert isinstance(proposal, AddProposal)
        return AddProposal(run, proposal.tilt)

    def share(self, run: Run) -> float:
        """Q-mass at ratio 0, of any round."""
        return -math.expm1(sum(f.copies * f.rounds * math.log1p(-f.round.zero) for f in run.factors))
