"""Plausible mistakes, planted into the server or the client."""

import numpy as np
import torch

from fedamp import noise
from fedamp.client import worker
from fedamp.engines.engines import FaultyGrid
from fedamp.engines.wire import RoundAnswer
from fedamp.federation import check_in
from fedamp.federation.running import Faults
from fedamp.federation.submodels import DisjointSubmodels
from fedamp.models import pieces
from fedamp.server import setup
from fedamp.strategies import private


def noise_too_small_by_a_third(monkeypatch):
    right = noise.add_noise

    def wrong(sums, deviation_of, *rest):
        right(sums, {name: deviation * 2 / 3 for name, deviation in deviation_of.items()}, *rest)

    monkeypatch.setattr(noise, "add_noise", wrong)


def no_clipping_on_the_client(monkeypatch):
    right = worker.clip_and_sum

    def wrong(updates, parts, clips, *how):
        return right(updates, parts, [1e3 * clip for clip in clips], *how)

    monkeypatch.setattr(worker, "clip_and_sum", wrong)


def every_array_clipped_by_itself(monkeypatch):
    """The norm of each array is within the clip, but not the norm of all arrays together."""
    right = worker.clip_and_sum

    def wrong(updates, parts, clips, *how):
        alone = [(name,) for part in parts for name in part]
        clips = [clip for part, clip in zip(parts, clips, strict=True) for _ in part]
        return right(updates, alone, clips, *how)

    monkeypatch.setattr(worker, "clip_and_sum", wrong)


def one_submodel_for_all(monkeypatch):
    monkeypatch.setattr(DisjointSubmodels, "draw", lambda self, cohort, seed, round_: 0 * cohort)


def one_submodel_for_the_whole_run(monkeypatch):
    right = DisjointSubmodels.draw

    def wrong(self, cohort, seed, round_):
        return right(self, np.arange(cohort.max(initial=0) + 1), seed, 1)[cohort]

    monkeypatch.setattr(DisjointSubmodels, "draw", wrong)


def no_dropout(monkeypatch):
    """Every client trains the whole model, whatever its mask."""
    monkeypatch.setattr(
        pieces.MaskedPiece, "_kept", lambda self, seeds, purpose, count: torch.ones(len(seeds), count, dtype=torch.bool)
    )


def one_check_in_too_many(monkeypatch):
    right = check_in.uniform_sets
    monkeypatch.setattr(
        check_in, "uniform_sets", lambda seed, first, rounds, check_ins: right(seed, first, rounds, check_ins + 1)
    )


def everybody_every_round(monkeypatch):
    """Poisson sampling at rate 1."""
    right = check_in.PoissonCheckIn.cohorts
    monkeypatch.setattr(
        check_in.PoissonCheckIn, "cohorts", lambda self, *them: right(self.model_copy(update={"rate": 1.0}), *them)
    )


class _WithRescheduled:
    """Attendance, and the units that did not answer in the last round."""

    def __init__(self, attendance):
        self.attendance, self.owed = attendance, np.empty(0, dtype=np.int64)

    def cohort_of(self, round_):
        return np.union1d(self.attendance.cohort_of(round_), self.owed)


class _Rescheduling(private.PrivateStrategy):
    """A unit that did not answer is in the next round too, so its rounds are no longer those that were drawn."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.plan.__dict__["attendance"] = _WithRescheduled(self.plan.attendance)

    def sum_replies(self, asked, replies):
        replies = list(replies)
        answers = [RoundAnswer.of(reply.content, asked.orders[reply.metadata.src_node_id]) for reply in replies]
        reported = [unit for answer in answers for unit in answer.reported]
        cohort = self.plan.attendance.cohort_of(asked.round)
        self.plan.attendance.owed = np.setdiff1d(cohort, np.array(reported, dtype=np.int64))
        return super().sum_replies(asked, replies)


def failures_rescheduled(monkeypatch):
    monkeypatch.setattr(setup, "PrivateStrategy", _Rescheduling)


def failing_until(last_round, failing=0.7):
    """Faults by which unit 0 fails in every round but the last, with the first such seed."""
    for seed in range(1000):
        grid = FaultyGrid(None, Faults(seed=seed, failing=failing))
        fails = [bool(grid._failing(round_, np.array([0]))[0]) for round_ in range(1, last_round + 1)]
        if fails == [True] * (last_round - 1) + [False]:
            return f"faults={{seed: {seed}, failing: {failing}}}"
    raise AssertionError("no such seed")
