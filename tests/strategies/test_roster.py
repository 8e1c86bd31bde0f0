"""Which node is asked for which unit, while nodes come, go and misbehave."""

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedamp import flower
from fedamp.strategies.assignment import Batch
from fedamp.strategies.roster import Roster


class Nodes:
    """A grid of which only the queries matter: node id -> what it hosts (None: everything; text: an error)."""

    def __init__(self, hosts: dict) -> None:
        flower.identify()
        self.hosts, self.asked = hosts, []

    def get_node_ids(self):
        return list(self.hosts)

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            hosts = self.hosts[node]
            if hosts == "silent":
                continue
            if hosts == "broken":
                yield flower.error_reply(message, 2, "no data here")
            elif hosts == "odd":
                yield Message(RecordDict({"something": ConfigRecord()}), reply_to=message)
            else:
                answer = ConfigRecord({"all": hosts is None, "clients": list(hosts or ())})
                yield Message(RecordDict({"hosts": answer}), reply_to=message)


def asked(roster: Roster, *batches: Batch) -> dict[int, list[int]]:
    assigned = roster.assign(batches)
    return {node: [int(unit) for batch in pieces for unit in batch.units] for node, pieces in assigned.items()}


def batch(*units: int, submodel: int = -1) -> Batch:
    return Batch(np.array(units), submodel)


def roster_of(grid: Nodes) -> Roster:
    roster = Roster()
    roster.refresh(grid, timeout=1)
    return roster


def test_hosted_units_go_to_their_node_and_units_of_nobody_are_left_out():
    roster = roster_of(Nodes({2: [0, 1], 3: [5]}))
    assert asked(roster, batch(0, 1, 5, 9)) == {2: [0, 1], 3: [5]}


def test_workers_that_host_everything_share_the_load_whatever_their_order():
    batches = [batch(*range(10)), batch(*range(10, 16)), batch(*range(16, 20))]
    one, other = (roster_of(Nodes(dict.fromkeys(ids))) for ids in ([2, 3], [3, 2]))
    assert asked(one, *batches) == asked(other, *batches)
    assert sorted(map(len, asked(one, *batches).values())) == [10, 10]


def test_a_submodel_travels_with_its_units():
    pieces = roster_of(Nodes({2: [0], 3: [1]})).assign([batch(0, 1, submodel=4)])
    assert {node: batches[0].submodel for node, batches in pieces.items()} == {2: 4, 3: 4}


def test_a_unit_hosted_twice_is_asked_once(caplog):
    roster = roster_of(Nodes({2: [0, 1], 3: [1, 2]}))
    assert asked(roster, batch(0, 1, 2)) == {2: [0, 1], 3: [2]}
    assert "unit 1 is hosted by nodes 2 and 3" in caplog.text


def test_nodes_that_answer_nonsense_are_named_and_the_others_train(caplog):
    roster = roster_of(Nodes({2: "broken", 3: [0], 4: "odd", 5: "silent"}))
    assert asked(roster, batch(0, 1)) == {3: [0]}
    assert "node 2" in caplog.text
    assert "node 4" in caplog.text


def test_each_node_is_asked_once_for_as_long_as_it_stays():
    grid = Nodes({2: [0], 3: "broken"})
    roster = roster_of(grid)
    roster.refresh(grid, timeout=1)
    assert grid.asked == [2, 3]


def test_a_node_that_was_too_late_to_say_whom_it_hosts_is_asked_again():
    grid = Nodes({2: [0], 3: "silent"})
    roster = roster_of(grid)
    assert asked(roster, batch(0, 1)) == {2: [0]}
    grid.hosts[3] = [1]
    roster.refresh(grid, timeout=1)
    assert asked(roster, batch(0, 1)) == {2: [0], 3: [1]}
    assert grid.asked == [2, 3, 3]


def test_a_node_that_vanishes_and_returns_under_another_name_is_asked_again(caplog):
    grid = Nodes({2: [0], 3: [1]})
    roster = roster_of(grid)
    del grid.hosts[3]
    roster.refresh(grid, timeout=1)
    assert asked(roster, batch(0, 1)) == {2: [0]}
    assert "[3] are gone" in caplog.text
    grid.hosts[7] = [1]
    roster.refresh(grid, timeout=1)
    assert asked(roster, batch(0, 1)) == {2: [0], 7: [1]}
    assert grid.asked == [2, 3, 7]


def test_with_no_node_at_all_nobody_is_asked():
    assert asked(roster_of(Nodes({})), batch(0, 1)) == {}


def test_node_ids_as_large_as_flower_draws_them_are_kept_to_the_last_digit():
    one, other = 2**64 - 3, 2**63 + 5
    assert asked(roster_of(Nodes({one: [0, 2], other: [1]})), batch(0, 1, 2, 3)) == {one: [0, 2], other: [1]}
