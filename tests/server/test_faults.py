"""Faults that a scenario injects, and faults that it does not: rounds end, nobody is rescheduled, the charge stays."""

import numpy as np
import pytest

from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import FederationError
from fedamp.runs.folder import RunFolder
from fedamp.server import launch
from fedamp.server.setup import prepare
from tests.federations import Silent, small
from tests.orders import order_in
from tests.server.plays import (
    Crash,
    Killed,
    killed_at,
    ledger_of,
    model_of,
    play_in,
    rounds_of,
)

CLIENTS, K = 60, 3


def charges(folder):
    return [entry["epsilon_upper"] for entry in ledger_of(folder)["releases"]]


def missing(folder) -> list[int]:
    return [line["scheduled"] - line["reported"] for line in rounds_of(folder)]


def test_failing_clients_count_as_zero_and_the_charge_stays(tmp_path):
    play_in(tmp_path / "fine", small())
    play_in(tmp_path / "faulty", small("faults={failing: 0.28, seed: 4}"))
    # 180 check-ins, each missing with probability 0.28: 50.4 expected, standard deviation 6; five of them.
    assert 20 < sum(missing(tmp_path / "faulty")) < 81
    assert [line["scheduled"] for line in rounds_of(tmp_path / "faulty")] == [
        line["scheduled"] for line in rounds_of(tmp_path / "fine")
    ]
    assert charges(tmp_path / "faulty") == charges(tmp_path / "fine")
    assert ledger_of(tmp_path / "faulty")["parts"] == ledger_of(tmp_path / "fine")["parts"]
    assert model_of(tmp_path / "faulty") != model_of(tmp_path / "fine")


class Twice(SerialGrid):
    """Every node answers twice."""

    def send_and_receive(self, messages, *, timeout=None):
        return 2 * list(super().send_and_receive(messages, timeout=timeout))


def test_answers_that_come_twice_change_nothing(tmp_path):
    play_in(tmp_path / "fine", small())
    play_in(tmp_path / "twice", small(), grid=Twice(CLIENT_APP, "cpu"))
    assert model_of(tmp_path / "twice") == model_of(tmp_path / "fine")
    assert sum(line["unprotected"]["refused_nodes"] for line in rounds_of(tmp_path / "twice")) == 8


class Messages(SerialGrid):
    """Remembers which clients were asked for in which round."""

    def __init__(self) -> None:
        super().__init__(CLIENT_APP, "cpu")
        self.asked: dict[int, list[int]] = {}

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        for message in sent:
            if message.metadata.message_type == "train":
                order = order_in(message)
                self.asked.setdefault(order.round, []).extend(order.ids)
        return super().send_and_receive(sent, timeout=timeout)


def test_a_client_that_failed_is_not_rescheduled(tmp_path):
    grid, scenario = Messages(), small("faults={failing: 0.3, seed: 1}", "federation={quorum: 0.0}")
    play_in(tmp_path / "run", scenario, grid=grid)
    attendance = prepare(scenario).plan.attendance
    for round_, asked in grid.asked.items():
        assert set(asked) < set(attendance.cohort_of(round_).tolist())
    checked_in = np.bincount(
        np.concatenate([attendance.cohort_of(round_) for round_ in range(1, 9)]), minlength=CLIENTS
    )
    assert (checked_in == K).all()


def test_a_run_with_faults_is_reproducible_and_resumable(tmp_path, monkeypatch):
    faults = "faults={failing: 0.28, seed: 1}"
    scenario = small(faults, "federation={checkpoint_every: 3, quorum: 0.2}")
    play_in(tmp_path / "whole", scenario)
    for step in (11, 23):
        with killed_at(monkeypatch, step), pytest.raises(Killed):
            play_in(tmp_path / f"{step}", scenario)
        play_in(tmp_path / f"{step}", scenario)
        assert model_of(tmp_path / f"{step}") == model_of(tmp_path / "whole")
        assert ledger_of(tmp_path / f"{step}") == ledger_of(tmp_path / "whole")


class Sleepy(SerialGrid):
    """Two nodes, of which some are too slow for some rounds."""

    def __init__(self, late: set[tuple[int, int]]) -> None:
        super().__init__(CLIENT_APP, "cpu")
        self.late = late

    def get_node_ids(self):
        return [2, 3]

    def send_and_receive(self, messages, *, timeout=None):
        assert timeout > 0
        in_time = [
            message for message in messages if (message.metadata.dst_node_id, order_in(message).round) not in self.late
        ]
        return super().send_and_receive(in_time, timeout=timeout)


TWO_NODES = ("engine={kind: serial, clients_per_batch: 8}", "federation={checkpoint_every: 100, quorum: 0.1}")


def test_a_round_in_which_no_node_answers_is_not_charged_and_can_be_played_again(tmp_path):
    scenario = small(*TWO_NODES)
    with pytest.raises(
        FederationError, match=r"round 2: none of \d+ clients reported \(node 2 did not answer in time\)"
    ):
        play_in(tmp_path / "run", scenario, grid=Sleepy({(2, 2), (3, 2)}))
    assert len(ledger_of(tmp_path / "run")["releases"]) == 1
    play_in(tmp_path / "run", scenario, grid=Sleepy(set()))
    play_in(tmp_path / "fine", scenario)
    assert model_of(tmp_path / "run") == model_of(tmp_path / "fine")
    assert charges(tmp_path / "run") == charges(tmp_path / "fine")


def test_a_round_that_is_not_reproducible_is_checkpointed_before_its_release(tmp_path):
    with pytest.raises(Killed):
        play_in(tmp_path / "run", small(*TWO_NODES), Crash(4), grid=Sleepy({(3, 3)}))
    released = ledger_of(tmp_path / "run")["releases"]
    # This time no node is late: round 3 would differ, but it was kept.
    play_in(tmp_path / "run", small(*TWO_NODES))
    assert ledger_of(tmp_path / "run")["releases"][:4] == released
    assert [missed > 0 for missed in missing(tmp_path / "run")] == [round_ == 3 for round_ in range(1, 9)]
    assert [line["unprotected"]["missing_nodes"] for line in rounds_of(tmp_path / "run")[:4]] == [0, 0, 1, 0]


@pytest.mark.slow
def test_workers_killed_in_the_middle_of_rounds_change_nothing(tmp_path):
    pytest.importorskip("ray")
    overrides = ["rounds=3", "engine={kind: ray, workers: 2}", "check_in={scheme: all}"]
    play_in(tmp_path / "fine", small("rounds=3", "check_in={scheme: all}"))
    faults = "faults={killed_workers: 0.4, seed: 3}"  # in round 2
    folder = launch.launch(small(*overrides, faults), Silent(), tmp_path / "killed")
    assert RunFolder(folder).log.read_text().count("its worker died") == 1
    assert model_of(folder) == model_of(tmp_path / "fine")
