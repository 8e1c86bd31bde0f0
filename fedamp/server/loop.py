"""The round loop: order, train, sum, release, write down; it stops before the budget is exceeded.

:func:`rounds` is the place to begin to read fedamp: its five steps are a private round. Each is computed in a place:

1. Order: :class:`fedamp.strategies.private.PrivateStrategy`; :mod:`fedamp.federation.check_in` draws the cohort, and
   :mod:`fedamp.federation.submodels` the submodels.
2. Train: :class:`fedamp.client.worker.TrainingNode`; :func:`fedamp.client.clipping.clip_and_sum` clips.
3. Sum: :mod:`fedamp.strategies.aggregation` adds up the nodes' sums. No noise is in them.
4. Release: :meth:`fedamp.strategies.pipeline.ReleasePipeline.release` asks the plan how much noise there must be
   (:meth:`fedamp.federation.plan.Plan.noise_deviations`). :mod:`fedamp.noise` draws it and adds it, once, and
   :mod:`fedamp.federation.optimizers` takes the step.
5. Write down: :mod:`fedamp.server.journal`.

A scenario's words about noise and sums are sections: :mod:`fedamp.federation.noise` and
:mod:`fedamp.federation.aggregation`. :mod:`fedamp.federation.model_noise` only compares schemes before a run.

The order of a round makes a crash harmless: the state after a round is checkpointed (nobody sees it), then entered in
the ledger, and only then released (:mod:`fedamp.server.journal`). A simulated round with a known seed that is computed
again gives the same model, because all randomness is addressed. Otherwise noise or replies may differ: there every
round is checkpointed, and the ledger refuses to release a round twice. Nothing is released below quorum or beyond the
budget.
"""

import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from types import FrameType

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp.accounting.verify import ENDED
from fedamp.errors import Interrupted, RunFolderError, StopTraining
from fedamp.federation.first_releases import first_releases
from fedamp.federation.side_sums import SideRelease
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.ledger import fingerprint
from fedamp.runs.records import LedgerRecord, RoundRecord, Summary
from fedamp.server import preflight
from fedamp.server.journal import RunJournal
from fedamp.server.observers import Observer, RunHooks, RunStart, around
from fedamp.server.setup import RunInputs
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.private import AskedRound, PrivateStrategy

PROMPTLY = 0.5  # seconds that the main thread has to stop after the second Ctrl-C


def rounds(
    inputs: RunInputs, grid: Grid, folder: RunFolder, observer: Observer, finish_round: bool = False
) -> Iterator[RoundRecord]:
    """Run a federation to its end or its budget, from the last checkpoint in its folder, new or to resume.

    Args:
        inputs: the plan with its data and model.
        grid: the nodes, simulated or real.
        folder: where the run is written down.
        observer: told of every round after its release.
        finish_round: Ctrl-C stops after the round, also while the caller works; else at once.

    Yields:
        Each round as it is released. After an early close the run can be resumed.

    Raises:
        FederationError: below quorum, nobody reported, or a round would be released twice. The run can be resumed.
        NobodyTrainedError: the run has ended, and each unit failed in each round.
        DivergedError: the model is no longer finite; the round was not released.
        RunFolderError: the folder's ledger or checkpoint is damaged or of another run.
        InputError: an extension refuses the run (:class:`fedamp.server.observers.RunHooks`).
    """
    with _begun_run(inputs, grid, folder, observer) as (journal, strategy, hooks):
        inputs, plan = journal.inputs, journal.plan  # with the numbers of first releases
        deadline = plan.scenario.federation.round_deadline
        interrupts = _count_interrupts(observer) if finish_round else nullcontext(())
        with interrupts as pressed, ThreadPoolExecutor(1) as meanwhile:
            # While the first clients train; the charge keeps the curve, and every release reads it.
            costs = meanwhile.submit(getattr, plan.charge, "epsilon_by_round")
            for round_ in range(strategy.state.round + 1, plan.last_round + 1):
                with journal.concluded_on_failure():
                    if round_ == 1:
                        preflight.check_training(inputs)
                    journal.wait_for_nodes(grid)
                    hooks.before_question()
                    units_left, began = hooks.units_left(), perf_counter()
                    # 1. Order: the hidden cohort of the round is assigned to nodes, each with its submodel.
                    asked = strategy.order_round(round_, grid, units_left=units_left)
                    # 2. Train: each node trains its units, clips each update, and adds them up. Meanwhile the next
                    # cohort is drawn.
                    following = meanwhile.submit(strategy.draw_round, round_ + 1) if round_ < plan.last_round else None
                    replies = grid.send_and_receive(asked.messages, timeout=deadline) if asked.messages else []
                    if following is not None:
                        following.result()
                    # 3. Sum: the replies are checked and added up. The sum is private, and stays here.
                    aggregate = strategy.sum_replies(asked, replies)
                    del asked, replies  # their arrays would be in memory while clients train
                    # 4. Release: quorum and budget allow it; noise is added, and the server takes its step.
                    costs.result()
                    state, release = strategy.pipeline.release(strategy.state, round_, aggregate)
                    # 5. Write down: checkpoint, then ledger. Only then the strategy goes on from the released model.
                    record = journal.write_down(state, release, aggregate, strategy.roster, began)
                    strategy.state = state
                    aggregate.check_possible()
                try:
                    observer.round_done(record)
                    yield record
                except StopTraining:
                    break
                except (Exception, GeneratorExit, KeyboardInterrupt):  # of a callback, or of the caller
                    journal.finish()
                    raise
                if pressed:
                    break
            with journal.concluded_on_failure():
                if journal.lacks_side_release:
                    hooks.before_question()
                    if (side := play_side_sum(strategy, grid, units_left=hooks.units_left())) is not None:
                        journal.ledger.enter_side_release(side)
        journal.finish()
        journal.check_trained(grid)


def play(inputs: RunInputs, grid: Grid, folder: RunFolder, observer: Observer) -> Summary:
    """Play all of :func:`rounds`, with Ctrl-C after a round.

    Args:
        inputs, grid, folder, observer: as of :func:`rounds`.

    Returns:
        The summary in the folder.

    Raises:
        FederationError, InputError: as :func:`rounds`.
    """
    for _ in rounds(inputs, grid, folder, observer, finish_round=True):
        pass
    return read_summary(folder.path)


@contextmanager
def _begun_run(
    inputs: RunInputs, grid: Grid, folder: RunFolder, observer: Observer
) -> Iterator[tuple[RunJournal, PrivateStrategy, RunHooks]]:
    """Begin or resume a run: enter the hooks of extensions, play its first releases, read its folder.

    Yields:
        Its journal, its strategy in the state after the last released round, and the hooks.

    Raises:
        RunFolderError: the folder's ledger or checkpoint is damaged or of another run, or the run has diverged.
        InputError: an extension refuses the run.
    """
    known = LedgerRecord.read(folder.ledger) if folder.ledger.exists() else None
    ended = known is not None and known.stopped_because in ENDED
    if known is not None and known.stopped_because == "diverged" and not inputs.plan.known_seed:
        # Its last round has told one thing: that its noisy sum is no model. With other noise it would tell another.
        found = "the run diverged, and its round cannot be played twice"
        raise RunFolderError(f"{folder.ledger}: {found}; expected: a new run")
    digest = fingerprint(inputs.plan.scenario)
    with around(RunStart(inputs.plan, digest, folder, known is not None, ended)) as hooks:
        inputs = _with_first_releases(inputs, grid, known, hooks)
        if told := hooks.task_keys():
            inputs = replace(inputs, task=inputs.task.model_copy(update=told))
        journal = RunJournal(inputs, folder, observer, hooks)
        observer.started(inputs, journal.finished)
        yield journal, inputs.strategy(journal.state), hooks


def _with_first_releases(inputs: RunInputs, grid: Grid, known: LedgerRecord | None, hooks: RunHooks) -> RunInputs:
    """Give a run the numbers that are released before its first round: those of its ledger, or released now.

    Args:
        inputs: of the run.
        grid: the nodes.
        known: the ledger of a run that is resumed.
        hooks: of extensions.

    Raises:
        FederationError: below quorum; nothing was released.
        RunFolderError: the ledger has none.
    """
    for key, kind in first_releases().items():
        if (asked := kind.asked_by(inputs.plan.scenario)) is None:
            continue
        if known is None:
            hooks.before_question()
            numbers = asked.release(inputs, grid, hooks.units_left())
        elif (numbers := getattr(known, key)) is None:
            raise RunFolderError(f"ledger.json of {known.scenario}: no {key}; expected: as the run began")
        inputs = inputs.with_first_release(key, numbers)
    return inputs


def ask(strategy: PrivateStrategy, grid: Grid, round_: int, units_left: frozenset[int] = frozenset()) -> Aggregate:
    """Take the first three steps of a round alone: order, train, sum. Nothing is released, and no file is written.

    An audit and tests call it; :func:`rounds` has the same steps, and draws the next cohort meanwhile.

    Args:
        strategy: in the state after the round before.
        grid: the nodes.
        round_: from 1.
        units_left: as of :meth:`fedamp.strategies.private.PrivateStrategy.order_round`.

    Returns:
        The sum of the clipped updates; it is private.
    """
    return _collect_sum(strategy, grid, strategy.order_round(round_, grid, units_left=units_left))


def _collect_sum(strategy: PrivateStrategy, grid: Grid, asked: AskedRound) -> Aggregate:
    """Send the messages of a round, wait until its deadline, and add up the replies."""
    deadline = strategy.plan.scenario.federation.round_deadline
    replies = grid.send_and_receive(asked.messages, timeout=deadline) if asked.messages else []
    return strategy.sum_replies(asked, replies)


def play_side_sum(
    strategy: PrivateStrategy,
    grid: Grid,
    units: NDArray[np.int64] | None = None,
    units_left: frozenset[int] = frozenset(),
) -> SideRelease | None:
    """Ask some units for their side sum over the strategy's model, and release it; nothing is written down.

    It costs :meth:`fedamp.federation.side_sums.SideSum.cost`, which the caller has reserved.

    Args:
        strategy: in the state whose model the units get.
        grid: the nodes.
        units: ids, int64; default: all.
        units_left: as of :meth:`fedamp.strategies.private.PrivateStrategy.order_side_sum`.

    Returns:
        The release; None if its sum is lost, which costs the same.

    Raises:
        FederationError: too few of them answered; nothing was released.
    """
    side, count = strategy.plan.side_sum, strategy.plan.units if units is None else len(units)
    aggregate = _collect_sum(strategy, grid, strategy.order_side_sum(grid, units, units_left))
    assert side is not None, "the strategy has asked for it"
    strategy.pipeline.check_reported(side.key, count, aggregate)
    aggregate.check_possible()
    return strategy.pipeline.side_release(strategy.state, aggregate, count)


@contextmanager
def _count_interrupts(observer: Observer) -> Iterator[Sequence[int]]:
    """Turn the first Ctrl-C into a request to stop after the round; the second one stops at once.

    Another thread answers: Python calls no handler of a signal while the main thread is inside an operation of torch.
    Outside the main thread of a program, signals are left as they are.

    Yields:
        The numbers of the signals so far: none, or a request to stop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield ()
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
            yield calls
        finally:
            left.set()
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            mouth.shutdown(socket.SHUT_WR)
            thread.join()
