"""The round loop: ask, add up, check, release, write down; stop before the budget is exceeded.

The order of a round makes a crash harmless: the state after a round is checkpointed (nobody sees it), then entered in
the ledger, and only then released. A simulated round with a known seed that is computed again gives the same model,
because all randomness is addressed. Otherwise noise or replies may differ: there every round is checkpointed, and the
ledger refuses to release a round twice. Nothing is released below quorum or beyond the budget.
"""

import json
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import FrameType

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray
from safetensors.numpy import save

from fedamp.accounting.verify import ENDED
from fedamp.base.files import write_secret
from fedamp.engines.flower import is_simulated
from fedamp.errors import (
    DivergedError,
    FederationError,
    Interrupted,
    NobodyTrainedError,
    RunFolderError,
    StopTraining,
    UnwritableError,
)
from fedamp.federation.evaluation import Evaluated
from fedamp.population.account import Account, charged
from fedamp.runs.checkpoint import checkpoints, read_checkpoint, write_checkpoint
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.ledger import Ledger, fingerprint
from fedamp.runs.records import (
    EVALUATED,
    NOT_EVALUATED,
    Bracket,
    Ending,
    LedgerRecord,
    RoundRecord,
    Summary,
    last_quality,
    measured,
    reports,
)
from fedamp.server import preflight
from fedamp.server.moments import standardised
from fedamp.server.observers import Observer
from fedamp.server.setup import RunInputs
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.pipeline import Release, ServerState
from fedamp.strategies.private import PrivateStrategy

log = logging.getLogger("fedamp.server")

PROMPTLY = 0.5  # seconds that the main thread has to stop after the second Ctrl-C


def play(prepared: RunInputs, grid: Grid, folder: RunFolder, observer: Observer) -> Summary:
    """All of :func:`rounds`, with Ctrl-C after a round; returns the summary in the folder."""
    for _ in rounds(prepared, grid, folder, observer, finish_round=True):
        pass
    return read_summary(folder.path)


def rounds(
    prepared: RunInputs, grid: Grid, folder: RunFolder, observer: Observer, finish_round: bool = False
) -> Iterator[RoundRecord]:
    """Run a federation to its end or its budget, from the last checkpoint in its folder, new or to resume.

    Yields each round as it is released; after an early close the run can be resumed. With ``finish_round`` Ctrl-C stops
    after the round, also while the caller works; else at once.

    Raises:
        FederationError: below quorum, nobody reported, or a round would be released twice. The run can be resumed.
        NobodyTrainedError: the run has ended, and each unit failed in each round.
        DivergedError: the model is no longer finite; the round was not released.
        RunFolderError: the folder's ledger or checkpoint is damaged or of another run.
        PopulationError: the people of ``privacy.population`` have not enough left, or its file is not as it was.
    """
    known = LedgerRecord.read(folder.ledger) if folder.ledger.exists() else None
    ended = known is not None and known.stopped_because in ENDED
    if known is not None and known.stopped_because == "diverged" and not prepared.plan.known_seed:
        # Its last round has told one thing: that its noisy sum is no model. With other noise it would tell another.
        found = "the run diverged, and its round cannot be played twice"
        raise RunFolderError(f"{folder.ledger}: {found}; expected: a new run")
    digest = fingerprint(prepared.plan.scenario)
    with charged(prepared.plan, digest, folder.path, known is not None, ended) as account:
        prepared = standardised(prepared, grid, known, account)
        yield from _rounds(prepared, grid, folder, observer, finish_round, account)


def _rounds(
    prepared: RunInputs,
    grid: Grid,
    folder: RunFolder,
    observer: Observer,
    finish_round: bool,
    account: Account | None,
) -> Iterator[RoundRecord]:
    run = _Run(prepared, grid, folder, observer, account)
    observer.started(prepared, run.finished)
    interrupts = _interrupts(observer) if finish_round else nullcontext(lambda: False)
    with interrupts as interrupted, ThreadPoolExecutor(1) as meanwhile:
        for round_ in range(run.state.round + 1, prepared.plan.last_round + 1):
            with _concluded(run):
                if round_ == 1:
                    preflight.check_training(prepared)
                record = run.play_round(round_, meanwhile)
            try:
                observer.round_done(record)
                yield record
            except StopTraining:
                break
            except (Exception, GeneratorExit, KeyboardInterrupt):  # of a callback, or of the caller
                run.finish()
                raise
            if interrupted():
                break
        with _concluded(run):
            run.evaluate()
    run.finish()
    run.check_trained()


@contextmanager
def _concluded(run: "_Run") -> Iterator[None]:
    """A run that fails, or is stopped at once, gets a summary."""
    try:
        yield
    except (FederationError, UnwritableError, KeyboardInterrupt) as error:
        # The ledger may be a round ahead of the state, so the file of the model stays the same.
        ending: Ending = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        ending = "diverged" if isinstance(error, DivergedError) else ending
        summary = run.summary(ending, str(error) or None)
        try:
            run.ledger.conclude(summary)
        except UnwritableError:  # the second one
            pass
        except Exception:  # the person must see the first error
            log.exception("the summary could not be written")
        raise


class _Run:
    """One run between its start (or resumption) and its end."""

    def __init__(
        self, prepared: RunInputs, grid: Grid, folder: RunFolder, observer: Observer, account: Account | None
    ) -> None:
        self.account = account
        self.observer, scenario = observer, prepared.plan.scenario
        if scenario.model.local:
            places = {
                "personal": str(folder.personal.resolve()),
                "checkpoint_every": scenario.federation.checkpoint_every,
            }
            prepared = replace(prepared, task=prepared.task.model_copy(update=places))
        self.prepared, self.plan, self.grid, self.folder = prepared, prepared.plan, grid, folder
        self.fingerprint = fingerprint(self.plan.scenario)
        self.startup_seconds = 0.0
        evaluation = EVALUATED if prepared.evaluate_every else NOT_EVALUATED
        frozen, population = prepared.task.model.frozen_sha256, account.record if account else None
        self.ledger = Ledger(folder.ledger, self.plan, frozen, evaluation, population, prepared.task.statistics)
        self.finished: list[RoundRecord] = []
        self.strategy = prepared.strategy(self._resume() or prepared.state, self._write_down)
        self.ledger.begin()
        if not (self.plan.known_seed or folder.seed.exists() or self.ledger.has_ended):
            write_secret(folder.seed, str(self.plan.seed))

    @property
    def state(self) -> ServerState:
        return self.strategy.state

    def play_round(self, round_: int, meanwhile: Executor) -> RoundRecord:
        """Play one round; while clients train, another thread prepares the next one."""
        if not self.startup_seconds:
            self.grid.get_node_ids()  # waits for the nodes: no work of the first round
            self.startup_seconds = perf_counter() - self.prepared.began
        self._asks()
        self.round_began = perf_counter()
        aggregate = ask(self.strategy, self.grid, round_, meanwhile if round_ < self.plan.last_round else None)
        self.strategy.release(round_, aggregate)  # which calls write_down
        self._append(self.record)
        aggregate.check_possible()
        return self.record

    def _asks(self) -> None:
        if self.account:
            self.account.asks()

    def evaluate(self) -> None:
        """Evaluate the model of the last round on held-out records of all clients, if that is asked for and left."""
        asked = self.plan.scenario.evaluation
        is_last = 0 < self.state.round == self.plan.last_round
        if asked is not None and asked.at_end and is_last and self.ledger.final_evaluation is None:
            self._asks()
            self.ledger.enter_evaluation(evaluate(self.strategy, self.grid))

    def _append(self, record: RoundRecord) -> None:
        self.folder.append_round(record)
        self.finished.append(record)

    def _write_down(self, state: ServerState, release: Release, aggregate: Aggregate) -> None:
        """Evaluate a round, checkpoint it where it is due, and enter it in the ledger: then it may be released."""
        if self.plan.scenario.privacy.canaries:
            self.folder.write_for_audit(f"{release.round}.safetensors", save(state.parameters))
        release.noisy_sums.clear()  # twice the model in memory, beside evaluation and checkpoint
        self.record = self._record(release, aggregate)
        due = release.round % self.plan.scenario.federation.checkpoint_every == 0
        roster = self.strategy.roster
        # Known seed, and all simulated workers answered: a second try gives the same.
        is_reproducible = self.plan.known_seed and roster.everywhere and not roster.host_of
        is_reproducible = is_reproducible and not aggregate.missing_nodes
        kept = due or release.round == self.plan.last_round or not is_reproducible
        if kept:
            self._write_checkpoint(state, self.record)
        # A power cut may take the rounds since a simulation's last checkpoint: they are reproduced to the bit.
        self.ledger.enter(release.round, release.parameters, self.record, durable=kept)

    def finish(self) -> None:
        """Write the model of the last released round; for an interrupted run also a checkpoint."""
        stopped_because: Ending = "finished"
        if self.state.round < self.plan.last_round:
            stopped_because = "interrupted"
        elif self.plan.last_round < self.plan.scenario.rounds:
            stopped_because = "budget"
            log.info("stopped before round %d, which would exceed the budget", self.plan.last_round + 1)
        summary = self.summary(stopped_because)
        if stopped_because == "interrupted":
            self._write_checkpoint(self.state, self.finished[-1])
        self.folder.write_model(self.state.model)
        if self.plan.scenario.privacy.canaries and stopped_because != "interrupted":
            self.folder.write_for_audit("0.safetensors", save(self.prepared.state.parameters))
            self.folder.write_for_audit("coins.json", json.dumps(self.plan.coins.astype(int).tolist()).encode())
        self.ledger.conclude(summary)
        if self.account:
            self.account.ended = self.ledger.has_ended
        if self.ledger.has_ended and not (self.plan.known_seed or self.plan.scenario.federation.keep_secrets):
            log.info("the run has ended: its secret seed and its checkpoints are deleted")
            self.folder.delete_secrets()

    def check_trained(self) -> None:
        """Raise NobodyTrainedError if all units failed. Only at the end: a unit's data stop no run. In a deployment it
        stands in the log, because others see whether a run fails.
        """
        _, reported, failed = reports(self.finished)
        if self.state.round == self.plan.last_round and 0 < reported <= failed:
            unit = self.plan.scenario.privacy.unit
            why = f"no {unit} could train in any of {len(self.finished)} rounds: the model is noise; "
            error = NobodyTrainedError(why + "expected: records that fit model and loss")
            if is_simulated(self.grid):
                raise error
            log.warning("%s", error)

    def _write_checkpoint(self, state: ServerState, record: RoundRecord) -> None:
        self.folder.flush()
        every = self.plan.scenario.federation.checkpoint_every
        write_checkpoint(self.folder.checkpoints, state, record, self.fingerprint, every, self.prepared.owners)

    def summary(self, stopped_because: Ending, error: str | None = None) -> Summary:
        """The summary of the releases; observers get it before it is written, in case the disk is full."""
        plan, charge, done = self.plan, self.plan.charge, self.finished
        released, has_left = self.ledger.releases, self.ledger.has_left(stopped_because)
        spent = Bracket.of(charge.spent(len(released))) if has_left else Bracket(lower=0, upper=0)
        if released:  # perhaps by a looser bound of another version
            spent = spent.model_copy(update={"upper": released[-1].epsilon_upper})
        scheduled, reported, failed = reports(done)
        summary = Summary(
            name=plan.scenario.name,
            final=last_quality(done),
            # Before anything has left the server, nothing that was seen can decide the stop.
            epsilon=Bracket.of(charge.guaranteed_epsilon) if has_left else spent,
            released_rounds_epsilon=spent,
            unamplified_epsilon=Bracket.of(charge.unamplified_epsilon),
            epsilon_server=charge.server_epsilon and Bracket.of(charge.server_epsilon),
            epsilon_nodes=charge.nodes_epsilon and Bracket.of(charge.nodes_epsilon),
            has_known_seed=plan.known_seed,
            rehearsal=plan.rehearsal,
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
            cost=self.prepared.cost,
            evaluated=self.evaluated,
        )
        self.observer.ended(summary)
        return summary

    @property
    def evaluated(self) -> Evaluated | None:
        """The last evaluation on held-out records of the clients."""
        each = [entry.evaluated for entry in self.ledger.releases if entry.evaluated]
        return self.ledger.final_evaluation or (each[-1] if each else None)

    def _record(self, release: Release, collected: Aggregate) -> RoundRecord:
        round_, roster, validation_score = release.round, self.strategy.roster, None
        loss, metrics = None, dict[str, float]()
        every = self.prepared.evaluate_every
        if every and (round_ % every == 0 or round_ == self.plan.last_round):
            loss, metrics = self.prepared.evaluate(release.parameters)
            validation_score = self.prepared.validate(release.parameters)
            if not math.isfinite(loss):
                raise DivergedError(round_, "its loss")
        counts = ("failed", "refused_nodes", "oversized_nodes", "missing_nodes")
        unprotected = {name: getattr(collected, name) for name in counts}
        if collected.noisy_nodes is None:  # else nobody knows
            unprotected |= {
                "training_loss": collected.loss_sum / max(collected.records, 1),
                "clipped": collected.clipped / max(collected.reported, 1),
            }
        return RoundRecord(
            round=round_,
            **measured(loss, metrics),
            validation_score=validation_score,
            epsilon_upper=float(self.plan.charge.epsilon_by_round[round_ - 1]),
            scheduled=len(self.plan.attendance.cohort(round_)),
            reported=collected.reported,
            seconds=perf_counter() - self.round_began,
            noise_surplus=collected.noise_surplus(self.plan.terms),
            impossible_sum=bool(collected.impossible),
            evaluated=release.evaluated,
            nodes_given_up=tuple(roster.given_up),
            nodes_back=tuple(roster.back),
            unprotected=unprotected,
        )

    def _resume(self) -> ServerState | None:
        """The state of the last checkpoint, with ledger and rounds.jsonl checked against it; None for a new run."""
        folder, files, released = self.folder, checkpoints(self.folder.checkpoints), len(self.ledger.releases)

        def wrong(file: Path, what: str, expected: str = "as the run left it") -> RunFolderError:
            return RunFolderError(f"{file}: {what}; expected: {expected}")

        if not files and self.ledger.has_ended:
            self.ledger.check_files(released)
            self._keep_rounds(released)
            return ServerState(self.ledger.last_model(), released)
        if files and not folder.ledger.exists():
            raise wrong(folder.ledger, "gone, but the run has checkpoints")
        checkpoint = None
        if files:
            # Where no round is left to play nobody can get another's, and the key of the digest may be deleted already.
            owners = None if self.ledger.has_ended else self.prepared.owners
            checkpoint = read_checkpoint(files[-1], self.fingerprint, self.prepared.state, owners)
        last = checkpoint[0].round if checkpoint else 0
        # With a secret seed a second try of a round differs, so released rounds cannot be computed again.
        if released > last and not self.plan.known_seed:
            raise wrong(folder.checkpoints, f"ends at round {last}, but round {released} was released")
        if checkpoint is None:
            if folder.ledger.exists():
                self.ledger.check_files(0)
            self._keep_rounds(0)
            return None
        state, record = checkpoint
        if released < last - 1:
            what = f"ends at round {released}, before the checkpoint of round {last}"
            raise wrong(folder.ledger, what, "the ledger of the same run")
        kept = [done.round for done in folder.read_rounds() if done.round <= last]
        if kept not in (list(range(1, last)), list(range(1, last + 1))):
            raise wrong(folder.rounds, f"damaged: its rounds are not 1 to {last} each once")
        self.ledger.check_files(last)
        # A crash may have come between the checkpoint and the ledger, or between the ledger and rounds.jsonl.
        try:
            self.ledger.enter(last, state.model, record if len(kept) < last else None)
        except FederationError as error:
            raise RunFolderError(f"{files[-1]}: not of the run of this ledger: {error}") from None
        self._keep_rounds(last)
        if len(kept) < last:
            self._append(record)
        return state

    def _keep_rounds(self, last: int) -> None:
        """Take over the lines of the first rounds; later ones are dropped, because those rounds are played again."""
        if any(record.round > last for record in self.folder.read_rounds()):
            self.ledger.reopen()
        self.finished = self.folder.forget_rounds_after(last)


def ask(strategy: PrivateStrategy, grid: Grid, round_: int, meanwhile: Executor | None = None) -> Aggregate:
    """Ask the nodes and add up their replies; while they train, ``meanwhile`` prepares the next round."""
    messages = list(strategy.configure_train(round_, strategy.arrays(), ConfigRecord(), grid))
    deadline = strategy.plan.scenario.federation.round_deadline
    prepared = meanwhile.submit(strategy.prepare, round_ + 1) if meanwhile else None
    replies = grid.send_and_receive(messages, timeout=deadline) if messages else []
    if prepared is not None:
        prepared.result()
    return strategy.aggregate(round_, replies)


def evaluate(strategy: PrivateStrategy, grid: Grid, units: NDArray[np.int64] | None = None) -> Evaluated:
    """The noisy score of the strategy's model on the held-out records of some units; default: of all.

    It costs :meth:`fedamp.federation.plan.Charge.of_evaluation`, which the caller has reserved. FederationError: too
    few of them answered; nothing is known of their records.
    """
    messages, plan = list(strategy.configure_evaluation(grid, units)), strategy.plan
    replies = grid.send_and_receive(messages, timeout=plan.scenario.federation.round_deadline) if messages else []
    aggregate = strategy.aggregate(plan.scenario.rounds + 1, replies)
    count = plan.units if units is None else len(units)
    strategy.pipeline.check_reported("evaluation", count, aggregate)
    aggregate.check_possible()
    found = strategy.pipeline.evaluated(strategy.state, aggregate, count)
    assert found is not None, "it was asked for"
    return found


@contextmanager
def _interrupts(observer: Observer) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop after the round; the second one stops at once.

    Another thread answers: Python calls no handler of a signal while the main thread is inside an operation of torch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    numbers, calls = (signal.SIGINT, signal.SIGTERM), list[int]()
    again, left = threading.Event(), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        calls.append(number)
        Interrupted.exit_code = 128 + number
        if len(calls) > 1 or again.is_set():  # two signals during one operation are one call
            raise KeyboardInterrupt

    def answer() -> None:
        heard = 0
        while byte := ear.recv(1):
            heard += byte[0] in numbers
            if byte[0] in numbers and heard == 1:
                observer.stopping()
            elif byte[0] in numbers and heard == 2:
                again.set()
                if not left.wait(PROMPTLY):
                    observer.halted()

    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    thread = threading.Thread(target=answer, daemon=True)
    with ear, mouth:
        before = {number: signal.signal(number, handle) for number in numbers}
        descriptor = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        thread.start()
        try:
            yield lambda: bool(calls)
        finally:
            left.set()
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            mouth.shutdown(socket.SHUT_WR)
            thread.join()
