"""What may not grow: memory with clients and with rounds; and what is done in pieces is the same as done whole."""

import gc
import tracemalloc

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedamp.engines import flower
from fedamp.engines.engines import open_grid
from fedamp.engines.wire import RoundAnswer, RoundOrder, rows
from fedamp.federation.check_in import BalancedCheckIn, StratifiedCheckIn
from fedamp.noise import Address, add_gaussian, add_noise
from fedamp.runs.folder import new_folder
from fedamp.server.loop import play
from fedamp.server.setup import prepare
from tests.federations import Silent, small

PIECE = 1 << 20  # of noise: numbers of one stream


def peak_of(action) -> int:
    """Bytes of Python's and NumPy's memory at the highest, on top of what was there."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BALANCED, STRATIFIED = BalancedCheckIn(scheme="balanced", k=3), StratifiedCheckIn(scheme="stratified", k=3)


@pytest.mark.parametrize("scheme", [BALANCED, STRATIFIED], ids=str)
def test_a_scheme_holds_a_few_bytes_a_client_however_many_rounds(scheme):
    clients = 200_000

    def walk():
        for _ in scheme.cohorts(30, clients, seed=1):
            pass

    # What was and what is still owed are 4 bytes a client each, a round's draws 8, the comparison 1, the cohort 8 for a
    # tenth.
    assert peak_of(walk) < 20 * clients


class Memory(Silent):
    """Bytes of Python's and NumPy's memory at the end of each round, and at the highest since the round before."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.highest = [], []

    def round_done(self, record) -> None:
        self.highest.append(tracemalloc.get_traced_memory()[1])
        gc.collect()  # when the collector runs depends on the tests before
        self.now.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.reset_peak()

    def on_top(self, round_: int) -> int:
        """Bytes that a round needs at its highest, on top of what was there."""
        return self.highest[round_ - 1] - self.now[round_ - 2]


def memory_of(tmp_path, clients: int, rounds: int) -> Memory:
    scenario = small(
        "data={name: synthetic, features: 16, records_per_client: 4}",
        f"data.clients={clients}",
        f"rounds={rounds}",
        f"check_in={{scheme: poisson, rate: {100 / clients!r}}}",
    )
    observer = Memory()
    folder, _ = new_folder(tmp_path / str(clients), "run")
    tracemalloc.start()
    try:
        with open_grid(scenario.engine, folder.log) as grid:
            play(prepare(scenario), grid, folder, observer)
    finally:
        tracemalloc.stop()
    return observer


def test_memory_follows_the_cohort_not_the_clients_or_the_rounds(tmp_path):
    few, many = memory_of(tmp_path, 1000, 26), memory_of(tmp_path, 300_000, 6)
    # A round leaves its record and a line of the ledger, a few kilobytes. Ten are allowed.
    assert few.now[25] - few.now[5] < 20 * 10_000
    # Poisson sampling draws 8 bytes a client and compares them, 1 byte; 1 more where it finds who was drawn.
    assert many.on_top(4) - few.on_top(4) < 12 * 300_000


def test_a_round_holds_no_more_than_four_copies_of_the_model():
    """The model, the sum of its updates (in float64: two), the next model; beside them blocks."""
    scenario = small(
        "data={name: synthetic, features: 100, clients: 100}",
        "model={name: mlp, hidden: [1500, 1500]}",
        "submodels={scheme: disjoint, count: 4}",
        "server.momentum=0",
    )
    prepared = prepare(scenario)
    pipeline, state = prepared.pipeline, prepared.state
    copy = sum(array.nbytes for array in state.parameters.values())
    cohort = prepared.plan.attendance.cohort_of(1)[:8].tolist()
    pieces = [prepared.pieces(unit % 4, 1).extract(state.parameters) for unit in cohort]
    orders = {
        2 + number: RoundOrder("", 1, (1.0,), rows([unit], [bytes(32)], unit % 4), pieces[number], unit % 4)
        for number, unit in enumerate(cohort)
    }
    flower.identify()

    def reply(number: int) -> Message:
        asked = Message(RecordDict(), 2 + number, "train")
        flower.set_message_id(asked, str(number))
        sums = {name: np.zeros(part.shape) for name, part in pieces[number].items()}
        answer = RoundAnswer(sums, cohort[number : number + 1], below_clip=1, records=1, loss_sum=1.0)
        return Message(answer.content(orders[2 + number]), reply_to=asked)

    def play() -> None:
        aggregate = pipeline.sum_replies(state, 1, (reply(number) for number in range(len(cohort))), orders, {})
        assert aggregate.reported == len(cohort)
        pipeline.release(state, 1, aggregate, needs_quorum=False)

    play()  # what is compiled and imported is no copy of the model
    # Replies, a tenth of a sum each, are gone when the next model is made; a block in float64 takes half a megabyte.
    assert copy + peak_of(play) < 4 * copy + 2_000_000


def test_noise_in_pieces_is_a_stream_a_piece_whatever_the_threads():
    sums = {"large": np.zeros((3, PIECE // 2)), "small": np.ones(5)}
    add_noise(sums, {"large": 2.0, "small": 0.5}, {}, seed=4, round_=9)
    pieces = [np.zeros(PIECE), np.zeros(PIECE // 2), np.ones(5)]
    for piece, deviation, indices in zip(pieces, (2.0, 2.0, 0.5), [(9, 0, 0), (9, 0, 1), (9, 1, 0)], strict=True):
        add_gaussian(piece, deviation, Address(4, "noise", indices))
    np.testing.assert_array_equal(sums["large"].ravel(), np.concatenate(pieces[:2]))
    np.testing.assert_array_equal(sums["small"], pieces[2])


def test_pieces_of_noise_are_independent():
    sums = {"a": np.zeros(2 * PIECE), "b": np.zeros(2 * PIECE)}
    add_noise(sums, {"a": 1.0, "b": 1.0}, {}, seed=1, round_=1)
    pieces = np.concatenate([sums["a"], sums["b"]]).reshape(4, PIECE)
    # A correlation of independent pieces has standard deviation 1 / sqrt(PIECE), 0.001; six pairs.
    assert np.abs(np.corrcoef(pieces) - np.eye(4)).max() < 5 / np.sqrt(PIECE)
    assert np.abs(pieces.std(axis=1) - 1).max() < 5 / np.sqrt(2 * PIECE)


def test_noise_refuses_what_it_could_only_copy():
    with pytest.raises(ValueError, match="Unable to avoid creating a copy"):
        add_noise({"a": np.zeros((3, 4)).T}, {"a": 1.0}, {}, seed=1, round_=1)


@pytest.mark.slow
def test_a_million_clients_and_a_thousand_rounds():
    cohorts = BalancedCheckIn(scheme="balanced", k=10).cohorts(1000, 1_000_000, seed=1)
    sizes = [len(cohort) for cohort in cohorts]
    assert sum(sizes) == 10_000_000
    # Sizes are nearly binomial with standard deviation 99.5; a thousand of them.
    assert max(abs(size - 10_000) for size in sizes) < 6 * 99.5
