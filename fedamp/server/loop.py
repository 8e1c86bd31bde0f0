"""The round loop: ask, add up, write down, release; stop before the budget is exceeded.

A round's order is what makes a crash harmless. The state after it is checkpointed (which shows nobody anything), then
it is entered in the ledger, and only then is anything of it let out. A round that is computed again after a crash
gives the same model, because all randomness is addressed; where it cannot (a deployment's clients may answer
otherwise), every round is checkpointed, and the ledger refuses to release a round twice.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType
from typing import Protocol

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedamp.accounting.bounds import finite
from fedamp.errors import FederationError, RunFolderError
from fedamp.server.checkpoint import Checkpoint, checkpoints, read_checkpoint, write_checkpoint
from fedamp.server.ledger import Ledger, fingerprint
from fedamp.server.run_folder import RoundRecord, RunFolder, Summary
from fedamp.server.setup import Prepared
from fedamp.strategies.private import PrivateStrategy, ServerState

log = logging.getLogger("fedamp.server")


class Observer(Protocol):
    """Who watches a run: a progress display, a test."""

    def started(self, prepared: Prepared, finished: list[RoundRecord]) -> None:
        """Before the first round; ``finished`` holds the rounds of an earlier, interrupted part of the run."""

    def round_done(self, record: RoundRecord) -> None:
        """After every released round."""

    def stopping(self) -> None:
        """After the first Ctrl-C: the round is finished first. Called from a signal handler."""


def play(
    prepared: Prepared, grid: Grid, folder: RunFolder, observer: Observer, startup_seconds: float = 0.0
) -> Summary:
    """Run a federation to its end, its budget, or an interrupt (Ctrl-C), from wherever the folder stands.

    Args:
        prepared: scenario, plan, data and model.
        grid: where the clients are.
        folder: a new run folder, or one to go on in.
        observer: told of every round.
        startup_seconds: time the engine took to be ready, for the summary.

    Returns:
        The summary, which has been written to the folder together with the model.

    Raises:
        FederationError: below quorum, or where a round would be released twice. The folder stays usable.
        RunFolderError: if the folder's ledger or checkpoint is damaged or of another run.
    """
    run = _Run(prepared, grid, folder)
    observer.started(prepared, run.finished)
    stopped_because = "finished"
    with _interrupts(observer.stopping) as interrupted:
        try:
            for round_ in range(run.state.round + 1, prepared.plan.scenario.rounds + 1):
                if round_ > prepared.plan.affordable_rounds:
                    stopped_because = "budget"
                    log.info("stopped before round %d, which would exceed the budget", round_)
                    break
                observer.round_done(run.play_round(round_, last=interrupted))
                if interrupted():
                    stopped_because = "interrupted"
                    break
        except (FederationError, KeyboardInterrupt) as error:
            # The state may be half a round ahead of what was released, so the model stays as it was.
            run.conclude("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", startup_seconds)
            raise
    run.write_model()
    return run.conclude(stopped_because, startup_seconds)


class _Run:
    """One run between its start (or resumption) and its end."""

    def __init__(self, prepared: Prepared, grid: Grid, folder: RunFolder) -> None:
        self.prepared, self.plan, self.grid, self.folder = prepared, prepared.plan, grid, folder
        self.fingerprint = fingerprint(self.plan)
        self.ledger = Ledger.open(folder.ledger, self.plan)
        self.finished: list[RoundRecord] = []
        self.state = self._resume() or prepared.state
        self.strategy: PrivateStrategy = prepared.strategy(self.state)

    def play_round(self, round_: int, last: Callable[[], bool]) -> RoundRecord:
        """Play one round up to its release. ``last`` says, at the round's end, whether no other will follow."""
        start = perf_counter()
        federation = self.plan.scenario.federation
        messages = list(self.strategy.configure_train(round_, self.strategy.arrays(), ConfigRecord(), self.grid))
        replies = list(self.grid.send_and_receive(messages, timeout=federation.round_deadline))
        answered = sum(not reply.has_error() for reply in replies)
        if answered < federation.quorum * len(messages):
            raise FederationError(
                f"round {round_}: {answered} of {len(messages)} nodes answered, below federation.quorum "
                f"{federation.quorum:g}; nothing of it was released"
            )
        self.strategy.aggregate_train(round_, replies)
        record = self._record(round_, start)
        due = round_ % federation.checkpoint_every == 0 or not self.plan.rehearsed or round_ == self._last_round
        if due or last():
            write_checkpoint(self.folder.checkpoints, Checkpoint(self.state, record), self.fingerprint)
        self.ledger.enter(round_, self.state.parameters)
        self.folder.append_round(record)
        self.finished.append(record)
        return record

    def write_model(self) -> None:
        """Write the model of the last released round."""
        self.folder.write_model(self.state.parameters)

    def conclude(self, stopped_because: str, startup_seconds: float) -> Summary:
        """Write the summary of what has been released."""
        plan, done = self.plan, self.finished
        evaluated = next((record for record in reversed(done) if record.accuracy is not None), None)
        spent = plan.spent(done[-1].round if done else 0)
        summary = Summary(
            name=plan.scenario.name,
            final={
                "accuracy": evaluated.accuracy if evaluated else None,
                "loss": evaluated.loss if evaluated else None,
            },
            epsilon=spent.to_json(),
            unamplified_epsilon=plan.unamplified_epsilon.to_json(),
            delta=plan.scenario.privacy.delta,
            noise_multiplier=plan.noise_multiplier,
            rounds_completed=len(done),
            clients_trained=sum(record.reported for record in done),
            wall_seconds=sum(record.seconds for record in done),
            startup_seconds=startup_seconds,
            stopped_because=stopped_because,
            parameters=sum(array.size for array in self.state.parameters.values()),
            cost=self.prepared.cost(),
        )
        self.folder.write_summary(summary)
        return summary

    @property
    def _last_round(self) -> int:
        return min(self.plan.scenario.rounds, self.plan.affordable_rounds)

    def _record(self, round_: int, start: float) -> RoundRecord:
        accuracy = loss = None
        if round_ % self.plan.scenario.federation.evaluate_every == 0 or round_ == self._last_round:
            accuracy, loss = self.prepared.evaluate(self.state.parameters)
        collected = self.strategy.collected
        assert collected is not None
        unprotected = {
            "training_loss": collected.loss_sum / max(collected.records, 1),
            "clipped": collected.clipped / max(collected.reported, 1),
            "failed": collected.failed,
            "refused_nodes": collected.refused_nodes,
        }
        return RoundRecord(
            round=round_,
            loss=loss,
            accuracy=accuracy,
            epsilon_upper=finite(float(self.plan.epsilon_by_round[round_ - 1])),
            scheduled=len(self.plan.attendance.cohort(round_)),
            reported=collected.reported,
            seconds=perf_counter() - start,
            unprotected=unprotected,
        )

    def _resume(self) -> ServerState | None:
        """The state to go on from, None at the start of a run."""
        files = checkpoints(self.folder.checkpoints)
        if not files:
            self.finished = self.folder.forget_rounds_after(0)
            return None
        checkpoint = read_checkpoint(files[-1], self.fingerprint)
        state, record = checkpoint.state, checkpoint.record
        if len(self.ledger.releases) < state.round - 1:
            raise RunFolderError(
                f"{self.folder.ledger}: ends at round {len(self.ledger.releases)}, before the checkpoint of round "
                f"{state.round}; accepted: the ledger of the same run"
            )
        # A crash may have come between the checkpoint and the ledger, or between the ledger and rounds.jsonl.
        self.ledger.enter(state.round, state.parameters)
        self.finished = self.folder.forget_rounds_after(state.round)
        if not self.finished or self.finished[-1].round < state.round:
            self.folder.append_round(record)
            self.finished.append(record)
        return state


@contextmanager
def _interrupts(stopping: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop after the round; the second one stops at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        stopping()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
