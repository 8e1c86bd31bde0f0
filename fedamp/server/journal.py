"""The journal of a run: its ledger, checkpoints, lines of rounds and summary, in the order that survives a crash.

The state after a round is checkpointed first, where it is due; then the ledger names the release; then a line of
``rounds.jsonl`` says how good it is. A run that is resumed finds which of these steps its last round had taken.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from flwr.serverapp import Grid

from fedamp.base.files import write_secret
from fedamp.engines.flower import is_simulated
from fedamp.errors import DivergedError, FederationError, NobodyTrainedError, RunFolderError, UnwritableError
from fedamp.federation.first_releases import first_releases
from fedamp.runs.checkpoint import checkpoints, read_checkpoint, write_checkpoint
from fedamp.runs.folder import RunFolder
from fedamp.runs.ledger import Ledger, fingerprint
from fedamp.runs.records import (
    EVALUATED,
    NOT_EVALUATED,
    Bracket,
    Ending,
    RoundRecord,
    Summary,
    last_quality,
    measured,
    reports,
    side_key,
)
from fedamp.server.observers import Observer, RunHooks
from fedamp.server.setup import RunInputs
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.pipeline import RoundRelease, ServerState
from fedamp.strategies.roster import NodeRoster

log = logging.getLogger("fedamp.server")


class RunJournal:
    """Writer of one run, between its start (or resumption) and its end.

    It alone decides the order of checkpoint, ledger and lines, so that a crash at any point can be resumed or refused.

    Args:
        inputs: the plan with its data and model.
        folder: of the run, locked.
        observer: told of the summary before it is written.
        hooks: of extensions.

    Attributes:
        state: of the server after the last round that is written down.
        finished: the lines of these rounds.
        ledger: of the run.
        startup_seconds: time from the start to the first round, once the nodes are there; 0 before.

    Raises:
        RunFolderError: the folder's ledger or checkpoint is damaged or of another run.
    """

    def __init__(self, inputs: RunInputs, folder: RunFolder, observer: Observer, hooks: RunHooks) -> None:
        self.inputs, self.plan, self.folder = inputs, inputs.plan, folder
        self.observer, self.hooks = observer, hooks
        self.fingerprint = fingerprint(self.plan.scenario)
        self.startup_seconds = 0.0
        evaluation = EVALUATED if inputs.evaluate_every else NOT_EVALUATED
        added = {key: getattr(inputs.task, key) for key in first_releases()} | hooks.ledger()
        self.ledger = Ledger(folder.ledger, self.plan, inputs.task.model.frozen_sha256, evaluation, added)
        self.finished: list[RoundRecord] = []
        self.state = self._resume() or inputs.state
        self.ledger.begin()
        if not (self.plan.known_seed or folder.seed.exists() or self.ledger.has_ended):
            write_secret(folder.seed, str(self.plan.seed))

    def wait_for_nodes(self, grid: Grid) -> None:
        """Wait for the nodes before the first round, and measure how long the start has taken.

        Raises:
            FederationError: the engine did not start, or the SuperLink does not answer.
        """
        if not self.startup_seconds:
            grid.get_node_ids()
            self.startup_seconds = perf_counter() - self.inputs.began

    def write_down(
        self, state: ServerState, release: RoundRelease, aggregate: Aggregate, roster: NodeRoster, began: float
    ) -> RoundRecord:
        """Evaluate a round, checkpoint it where it is due, enter it in the ledger, and append its line.

        Args:
            state: after the round.
            release: of the round; its noisy sums are forgotten.
            aggregate: the private sum of the round with its counts.
            roster: the nodes.
            began: when the round began, by :func:`time.perf_counter`.

        Raises:
            DivergedError: the test loss is not finite; nothing was released.
            FederationError: the round was released before with another model, or is out of turn.
            UnwritableError: a file cannot be written.
        """
        self.hooks.before_release(release.round, state.parameters)
        release.noisy_sums.clear()  # twice the model in memory, beside evaluation and checkpoint
        record = self._record(release, aggregate, roster, began)
        due = release.round % self.plan.scenario.federation.checkpoint_every == 0
        # Known seed, and all simulated workers answered: a second try gives the same.
        is_reproducible = self.plan.known_seed and roster.everywhere and not roster.host_of
        is_reproducible = is_reproducible and not aggregate.missing_nodes
        kept = due or release.round == self.plan.last_round or not is_reproducible
        if kept:
            self._write_checkpoint(state, record)
        # A power cut may take the rounds since a simulation's last checkpoint: they are reproduced to the bit.
        self.ledger.enter(release.round, release.parameters, record, durable=kept)
        self.state = state
        self._append(record)
        return record

    @property
    def lacks_side_release(self) -> bool:
        """Say whether the last round is released, and a side sum after it is asked for and not yet written down."""
        return 0 < self.state.round == self.plan.last_round and self.ledger.lacks_side_release

    @contextmanager
    def concluded_on_failure(self) -> Iterator[None]:
        """Write a summary if the run fails inside, or is stopped at once; the error goes on.

        The file of the model stays the same: the ledger may be a round ahead of the state.
        """
        try:
            yield
        except (FederationError, UnwritableError, KeyboardInterrupt) as error:
            ending: Ending = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            ending = "diverged" if isinstance(error, DivergedError) else ending
            summary = self.summary(ending, str(error) or None)
            try:
                self.ledger.conclude(summary)
            except UnwritableError:  # the second one
                pass
            except Exception:  # the person must see the first error
                log.exception("the summary could not be written")
            raise

    def finish(self) -> None:
        """End the run: write the model of the last released round, the end of the ledger, and the summary.

        An interrupted run gets a checkpoint, too. One that has come to its end loses its secrets, which only a
        resumption needs: the seed that decides the check-ins, and the checkpoints.

        Raises:
            UnwritableError: a file cannot be written.
        """
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
        if stopped_because != "interrupted":
            self.hooks.before_end(self.inputs.state.parameters)
        self.ledger.conclude(summary)
        if self.ledger.has_ended:
            self.hooks.has_ended()
        if self.ledger.has_ended and not (self.plan.known_seed or self.plan.scenario.federation.keep_secrets):
            log.info("the run has ended: its secret seed and its checkpoints are deleted")
            self.folder.delete_secrets()

    def check_trained(self, grid: Grid) -> None:
        """Raise an error if all units failed, at the end of the run: a unit's data stop no run.

        In a deployment the log says it, because others see whether a run fails.

        Raises:
            NobodyTrainedError: each unit failed in each round of a simulation.
        """
        _, reported, failed = reports(self.finished)
        if self.state.round == self.plan.last_round and 0 < reported <= failed:
            unit = self.plan.scenario.privacy.unit
            why = f"no {unit} could train in any of {len(self.finished)} rounds: the model is noise; "
            error = NobodyTrainedError(why + "expected: records that fit model and loss")
            if is_simulated(grid):
                raise error
            log.warning("%s", error)

    def summary(self, stopped_because: Ending, error: str | None = None) -> Summary:
        """Sum up the releases, and tell observers before the summary is written, in case the disk is full.

        Args:
            stopped_because: why the run stops now.
            error: why it failed or diverged, in one line.

        Returns:
            The summary, whose epsilon covers all planned rounds as soon as anything has left the server: who saw a
            release may have decided the stop.
        """
        plan, charge, done = self.plan, self.plan.charge, self.finished
        released, has_left = self.ledger.releases, self.ledger.has_left(stopped_because)
        spent = Bracket.of(charge.spent_epsilon(len(released))) if has_left else Bracket(lower=0, upper=0)
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
            unchecked=plan.unchecked_schemes,
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
            cost=self.inputs.cost,
            **self.ledger.side_release,
        )
        self.observer.ended(summary)
        return summary

    def _append(self, record: RoundRecord) -> None:
        """Append a round's line to ``rounds.jsonl``."""
        self.folder.append_round(record)
        self.finished.append(record)

    def _write_checkpoint(self, state: ServerState, record: RoundRecord) -> None:
        """Checkpoint the state after a round; what was written before is flushed first, because it relies on that."""
        self.folder.flush()
        every = self.plan.scenario.federation.checkpoint_every
        write_checkpoint(self.folder.checkpoints, state, record, self.fingerprint, every, self.inputs.owners)

    def _record(self, release: RoundRelease, aggregate: Aggregate, roster: NodeRoster, began: float) -> RoundRecord:
        """Evaluate the released model where it is due, and make the round's line of ``rounds.jsonl``.

        Raises:
            DivergedError: the test loss is not finite.
        """
        round_, validation_score = release.round, None
        loss, metrics = None, dict[str, float]()
        every = self.inputs.evaluate_every
        if every and (round_ % every == 0 or round_ == self.plan.last_round):
            loss, metrics = self.inputs.evaluate(release.parameters)
            validation_score = self.inputs.evaluate.validation_score(release.parameters)
            if not math.isfinite(loss):
                raise DivergedError(round_, "its loss")
        return RoundRecord(
            round=round_,
            **measured(loss, metrics),
            validation_score=validation_score,
            epsilon_upper=float(self.plan.charge.epsilon_by_round[round_ - 1]),
            scheduled=len(self.plan.attendance.cohort_of(round_)),
            reported=aggregate.reported,
            seconds=perf_counter() - began,
            noise_surplus=aggregate.noise_surplus,
            impossible_sum=bool(aggregate.impossible),
            **side_key(self.plan.side_sum, release.side_release),
            nodes_given_up=tuple(roster.given_up),
            nodes_back=tuple(roster.back),
            unprotected=aggregate.unprotected,
        )

    def _resume(self) -> ServerState | None:
        """Read the state of the last checkpoint, and check ledger and ``rounds.jsonl`` against it.

        A crash may have come between the checkpoint and the ledger, or between the ledger and ``rounds.jsonl``: the
        missing entries are made up for.

        Returns:
            The state after the last round; None for a new run.

        Raises:
            RunFolderError: a file is missing, damaged, or of another run.
        """
        folder, files, released = self.folder, checkpoints(self.folder.checkpoints), len(self.ledger.releases)

        def wrong(file: Path, what: str, expected: str = "as the run left it") -> RunFolderError:
            return RunFolderError(f"{file}: {what}; expected: {expected}")

        if not files and self.ledger.has_ended:
            self.ledger.check_files(released)
            self._keep_rounds(released)
            return ServerState(self.ledger.last_model(), released)
        if files and not folder.ledger.exists():
            raise wrong(folder.ledger, "missing, but the run has checkpoints")
        checkpoint = None
        if files:
            # Where no round is left to play nobody can get another's, and the key of the digest may be deleted already.
            owners = None if self.ledger.has_ended else self.inputs.owners
            checkpoint = read_checkpoint(files[-1], self.fingerprint, self.inputs.state, owners)
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
