"""The round loop: ask, add up, check, release, write down; stop before the budget is exceeded.

A round's order is what makes a crash harmless. Nothing is released below quorum or beyond the budget. The state after a
round is checkpointed (which shows nobody anything), then it is entered in the ledger, and only then is anything of it
let out. With a known seed a simulated round that is computed again after a crash gives the same model, because all
randomness is addressed. With a secret one it has other noise, and a deployment's clients may answer otherwise: there
every round is checkpointed, and the ledger refuses to release a round twice.
"""

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from time import perf_counter
from types import FrameType

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedamp.errors import DivergedError, FederationError, RunFolderError
from fedamp.runs.checkpoint import Checkpoint, checkpoints, read_checkpoint, write_checkpoint
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.ledger import Ledger, fingerprint
from fedamp.runs.records import Bracket, Cost, Ending, Quality, RoundRecord, Summary, measured, reports
from fedamp.server.observers import Observer as Observer
from fedamp.server.setup import Prepared
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.pipeline import Release, ServerState
from fedamp.strategies.private import PrivateStrategy

log = logging.getLogger("fedamp.server")


def play(prepared: Prepared, grid: Grid, folder: RunFolder, observer: Observer) -> Summary:
    """Run a federation to its end, its budget, or an interrupt (Ctrl-C), from wherever the folder stands.

    Args:
        prepared: scenario, plan, data and model.
        grid: where the clients are.
        folder: a new run folder, or one to go on in.
        observer: told of every round.

    Returns:
        The summary, which has been written to the folder together with the model.

    Raises:
        FederationError: below quorum, nobody reported, or a round would be released twice. The folder stays usable.
        DivergedError: the model is no longer finite; the round was not released.
        RunFolderError: if the folder's ledger or checkpoint is damaged or of another run.
    """
    for _ in rounds(prepared, grid, folder, observer, finish_round=True):
        pass
    return read_summary(folder.path)


def rounds(
    prepared: Prepared, grid: Grid, folder: RunFolder, observer: Observer, finish_round: bool = False
) -> Iterator[RoundRecord]:
    """The rounds of :func:`play`, one by one as they are released; closed early, the folder can be gone on in.

    Args:
        prepared, grid, folder, observer: as for :func:`play`.
        finish_round: whether Ctrl-C stops after the round, also where whoever iterates is at work; else at once.
    """
    run = _Run(prepared, grid, folder)
    observer.started(prepared, run.finished)
    interrupts = _interrupts(observer.stopping) if finish_round else nullcontext(lambda: False)
    with interrupts as interrupted, ThreadPoolExecutor(1) as meanwhile:
        for round_ in range(run.state.round + 1, prepared.plan.last_round + 1):
            try:
                if round_ == 1:
                    prepared.check_training()
                record = run.play_round(round_, meanwhile)
            except (FederationError, KeyboardInterrupt) as error:
                # The ledger may be a round ahead of the state, so the file of the model stays as it was.
                try:
                    run.conclude(_ending(error), error=str(error) or None)
                except Exception:  # why the run ended is what a person must hear
                    log.exception("the summary could not be written")
                raise
            try:
                observer.round_done(record)
                yield record
            except (Exception, GeneratorExit, KeyboardInterrupt):  # of a callback, or of whoever iterates
                run.finish()
                raise
            if interrupted():
                break
    run.finish()


class _Run:
    """One run between its start (or resumption) and its end."""

    def __init__(self, prepared: Prepared, grid: Grid, folder: RunFolder) -> None:
        self.prepared, self.plan, self.grid, self.folder = prepared, prepared.plan, grid, folder
        self.fingerprint = fingerprint(self.plan.scenario)
        self.startup_seconds = 0.0
        self.ledger = Ledger.open(folder.ledger, self.plan, prepared.task.model.frozen_sha256)
        self.finished: list[RoundRecord] = []
        self.strategy = prepared.strategy(self._resume() or prepared.state)
        self.ledger.begin()
        if not (self.plan.known_seed or folder.seed.exists()):
            folder.write_seed(self.plan.seed)

    @property
    def state(self) -> ServerState:
        """After the last round that was released."""
        return self.strategy.state

    def play_round(self, round_: int, meanwhile: Executor) -> RoundRecord:
        """Play one round up to its release; while clients train, the next one is prepared in another thread."""
        if not self.startup_seconds:
            self.grid.get_node_ids()  # waits for them: that is no work of the first round
            self.startup_seconds = perf_counter() - self.prepared.began
        start = perf_counter()
        aggregate = ask(self.strategy, self.grid, round_, meanwhile if round_ < self.plan.last_round else None)
        state, release = self.strategy.release(round_, aggregate)
        release.noisy_sums.clear()  # twice the model in memory, beside what evaluation and checkpoint need
        record = self._record(release, aggregate, start)
        due = round_ % self.plan.scenario.federation.checkpoint_every == 0 or round_ == self.plan.last_round
        kept = due or not self._would_come_out_again(aggregate)
        if kept:
            self._write_checkpoint(state, record)
        # A power cut may take the rounds since a simulation's last checkpoint: they are computed again, to the bit.
        self.ledger.enter(round_, release.parameters, record, durable=kept)
        self.strategy.state = state
        self.folder.append_round(record)
        self.finished.append(record)
        return record

    def finish(self) -> None:
        """Leave the model of the last released round; of a run that was interrupted, also one to go on from."""
        stopped_because: Ending = "finished"
        if self.state.round < self.plan.last_round:
            stopped_because = "interrupted"
        elif self.plan.last_round < self.plan.scenario.rounds:
            stopped_because = "budget"
            log.info("stopped before round %d, which would exceed the budget", self.plan.last_round + 1)
        if stopped_because == "interrupted":
            self._write_checkpoint(self.state, self.finished[-1])
        self.folder.write_model(self.state.model)
        self.conclude(stopped_because)

    def _write_checkpoint(self, state: ServerState, record: RoundRecord) -> None:
        self.folder.flush()
        every = self.plan.scenario.federation.checkpoint_every
        write_checkpoint(self.folder.checkpoints, Checkpoint(state, record), self.fingerprint, every)

    def _would_come_out_again(self, aggregate: Aggregate) -> bool:
        """If trying again gives the same: with a known seed, where all simulated workers did what they were asked."""
        roster = self.strategy.roster
        return self.plan.known_seed and bool(roster.everywhere) and not roster.host_of and not aggregate.missing_nodes

    def conclude(self, stopped_because: Ending, error: str | None = None) -> None:
        """Write down why the run stopped, and the summary of what has been released."""
        plan, done = self.plan, self.finished
        evaluated = next((record for record in reversed(done) if record.score is not None), None)
        released = self.ledger.releases
        spent = Bracket(lower=plan.spent(len(released)).lower, upper=released[-1].epsilon_upper if released else 0.0)
        scheduled, reported, failed = reports(done)
        summary = Summary(
            name=plan.scenario.name,
            final=Quality(**evaluated.model_dump(include=set(Quality.model_fields)))
            if evaluated
            else Quality(accuracy=None, loss=None),
            # Nothing was seen before the first round.
            epsilon=Bracket.of(plan.guaranteed_epsilon) if released else spent,
            released_rounds_epsilon=spent,
            unamplified_epsilon=Bracket.of(plan.unamplified_epsilon),
            has_known_seed=plan.known_seed,
            delta=plan.scenario.privacy.delta,
            noise_multiplier=plan.noise_multiplier,
            rounds_completed=len(done),
            clients_scheduled=scheduled,
            clients_trained=reported,
            clients_failed=failed,
            wall_seconds=sum(record.seconds for record in done),
            startup_seconds=self.startup_seconds,
            stopped_because=stopped_because,
            error=error,
            parameters=sum(array.size for array in self.state.parameters.values()),
            cost=Cost(**self.prepared.cost),
        )
        self.ledger.conclude(summary)

    def _record(self, release: Release, collected: Aggregate, start: float) -> RoundRecord:
        round_, loss, metrics, silence = release.round, None, dict[str, float](), self.strategy.roster.silence
        validation_score = None
        if round_ % self.plan.scenario.federation.evaluate_every == 0 or round_ == self.plan.last_round:
            loss, metrics = self.prepared.evaluate(release.parameters)
            validation_score = self.prepared.validate(release.parameters)
            if not math.isfinite(loss):
                raise DivergedError(round_, "its loss")
        unprotected = {
            "training_loss": collected.loss_sum / max(collected.records, 1),
            "clipped": collected.clipped / max(collected.reported, 1),
            "failed": collected.failed,
            "refused_nodes": collected.refused_nodes,
            "oversized_nodes": collected.oversized_nodes,
            "missing_nodes": collected.missing_nodes,
        }
        return RoundRecord(
            round=round_,
            **measured(loss, metrics),
            validation_score=validation_score,
            epsilon_upper=float(self.plan.epsilon_by_round[round_ - 1]),
            scheduled=len(self.plan.attendance.cohort(round_)),
            reported=collected.reported,
            seconds=perf_counter() - start,
            nodes_given_up=tuple(silence.given_up),
            nodes_back=tuple(silence.back),
            unprotected=unprotected,
        )

    def _resume(self) -> ServerState | None:
        """The state to go on from, None at the start of a run."""
        files = checkpoints(self.folder.checkpoints)
        if files and not self.folder.ledger.exists():
            raise RunFolderError(
                f"{self.folder.ledger}: gone, but the run has checkpoints; expected: as the run left it"
            )
        if not files:
            self._check_not_behind(0)
            self.finished = self.folder.forget_rounds_after(0)
            return None
        checkpoint = read_checkpoint(files[-1], self.fingerprint, self.prepared.state)
        state, record = checkpoint.state, checkpoint.record
        self._check_not_behind(state.round)
        if not state.round - 1 <= len(self.ledger.releases):
            raise RunFolderError(
                f"{self.folder.ledger}: ends at round {len(self.ledger.releases)}, before the checkpoint of round "
                f"{state.round}; expected: the ledger of the same run"
            )
        kept = [done.round for done in self.folder.read_rounds() if done.round <= state.round]
        if kept not in (list(range(1, state.round)), list(range(1, state.round + 1))):
            raise RunFolderError(
                f"{self.folder.rounds}: damaged: its rounds are not 1 to {state.round} each once; "
                "expected: as the run left it"
            )
        # A crash may have come between the checkpoint and the ledger, or between the ledger and rounds.jsonl.
        try:
            self.ledger.enter(state.round, state.model, record if len(kept) < state.round else None)
        except FederationError as error:
            raise RunFolderError(f"{files[-1]}: not of the run whose ledger this is: {error}") from None
        self.finished = self.folder.forget_rounds_after(state.round)
        if len(kept) < state.round:
            self.folder.append_round(record)
            self.finished.append(record)
        return state

    def _check_not_behind(self, round_: int) -> None:
        """With a secret seed a round comes out otherwise every time, so what was released cannot be computed again."""
        released = len(self.ledger.releases)
        if released > round_ and not self.plan.known_seed:
            raise RunFolderError(
                f"{self.folder.checkpoints}: ends at round {round_}, but round {released} was released; "
                "expected: as the run left it"
            )


def ask(strategy: PrivateStrategy, grid: Grid, round_: int, meanwhile: Executor | None = None) -> Aggregate:
    """Ask the nodes and add up what they answer; while they train, the next round is prepared, where it can be."""
    messages = list(strategy.configure_train(round_, strategy.arrays(), ConfigRecord(), grid))
    deadline = strategy.plan.scenario.federation.round_deadline
    prepared = meanwhile.submit(strategy.prepare, round_ + 1) if meanwhile else None
    replies = grid.send_and_receive(messages, timeout=deadline) if messages else []
    if prepared is not None:
        prepared.result()
    return strategy.aggregate(round_, replies)


def _ending(error: BaseException) -> Ending:
    match error:
        case DivergedError():
            return "diverged"
        case FederationError():
            return "failed"
    return "interrupted"


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
