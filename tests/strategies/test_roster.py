"""Which node is asked for which unit, while nodes come, go and misbehave."""

import itertools

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedamp.engines import flower
from fedamp.engines.wire import AnswerStatus, RoundAnswer, Rows, rows
from fedamp.errors import DeploymentError
from fedamp.federation.running import Federation
from fedamp.strategies.roster import NodeRoster
from tests.orders import order_in

UNITS = 20


class Nodes:
    """A grid of real nodes, of which only the queries matter.

    Args:
        hosts: node id -> what it says it hosts (None: everything; text: something odd).
        names: under which they are registered.
    """

    def __init__(self, hosts: dict, names: dict[int, str] | None = None) -> None:
        flower.identify()
        self.hosts, self.names, self.asked, self.numbers = hosts, names or {}, [], itertools.count()
        self.since: dict[int, str] = {}

    def get_nodes(self):
        return [
            NodeInfo(node_id=node, name=self.names.get(node, ""), last_activated_at=self.since.get(node, ""))
            for node in self.hosts
        ]

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            flower.set_message_id(message, str(next(self.numbers)))
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
                yield claim(message, hosts)


def claim(message: Message, hosts) -> Message:
    status = AnswerStatus.ANY_UNIT if hosts is None else AnswerStatus.DONE
    answer = RoundAnswer(reported=list(hosts or ()), status=status)
    return Message(answer.content(order_in(message)), reply_to=message)


class Workers(Nodes):
    """As :class:`Nodes`, simulated."""

    simulated = True


def asked(roster: NodeRoster, *batches: Rows) -> dict[int, list[int]]:
    return {node: units["id"].tolist() for node, units in roster.assign(batches).items()}


def batch(*units: int, submodel: int = -1) -> Rows:
    return rows(units, [bytes(32)] * len(units), submodel)


def roster_of(grid: Nodes, hosts="trusted") -> NodeRoster:
    roster = NodeRoster(Federation(hosts=hosts), UNITS)
    roster.refresh(grid, timeout=1)
    return roster


def test_hosted_units_go_to_their_node_and_units_without_a_host_are_dropped():
    roster = roster_of(Nodes({2: [0, 1], 3: [5]}))
    assert asked(roster, batch(0, 1, 5, 9)) == {2: [0, 1], 3: [5]}
    assert asked(roster_of(Nodes({})), batch(0, 1)) == {}


def test_a_node_started_again_between_two_rounds_is_queried_before_the_next():
    grid = Nodes({2: [0], 3: [1]})
    roster = roster_of(grid)
    grid.asked.clear()
    roster.refresh(grid, timeout=1)
    assert grid.asked == []
    grid.since[3] = "later"
    roster.refresh(grid, timeout=1)
    assert grid.asked == [3]
    assert asked(roster, batch(0, 1)) == {2: [0], 3: [1]}
    roster.refresh(grid, timeout=1)
    assert grid.asked == [3]


def test_workers_that_host_everything_share_the_load_whatever_their_order():
    batches = [batch(*range(10)), batch(*range(10, 16)), batch(*range(16, 20))]
    one, other = (roster_of(Workers(dict.fromkeys(ids))) for ids in ([2, 3], [3, 2]))
    assert asked(one, *batches) == asked(other, *batches)
    assert sorted(map(len, asked(one, *batches).values())) == [10, 10]


def test_a_submodel_travels_with_its_units():
    pieces = roster_of(Nodes({2: [0], 3: [1]})).assign([batch(0, 1, submodel=4)])
    assert {node: units["submodel"].tolist() for node, units in pieces.items()} == {2: [4], 3: [4]}


def test_a_unit_hosted_twice_is_asked_once(caplog):
    roster = roster_of(Nodes({2: [0, 1], 3: [1, 2]}, {2: "north", 3: "south"}))
    assert asked(roster, batch(0, 1, 2)) == {2: [0, 1], 3: [2]}
    assert "nodes north (2) and south (3) both claim units 1;" in caplog.text


def test_nodes_that_answer_nonsense_are_named_and_the_others_train(caplog):
    roster = roster_of(Nodes({2: "broken", 3: [0], 4: "odd", 5: "silent"}))
    assert asked(roster, batch(0, 1)) == {3: [0]}
    assert "node 2" in caplog.text
    assert "node 4" in caplog.text


def test_a_node_is_asked_once_and_again_if_it_was_late_or_comes_back(caplog):
    grid = Nodes({2: [0], 3: "broken", 4: "silent"})
    roster = roster_of(grid)
    assert asked(roster, batch(0, 1)) == {2: [0]}
    grid.hosts[4] = [1]
    roster.refresh(grid, timeout=1)
    assert asked(roster, batch(0, 1)) == {2: [0], 4: [1]}
    assert grid.asked == [2, 3, 4, 4]
    del grid.hosts[4]
    roster.refresh(grid, timeout=1)
    assert asked(roster, batch(0, 1)) == {2: [0]}
    assert "nodes 4 are disconnected" in caplog.text
    grid.hosts[7] = [1]
    roster.refresh(grid, timeout=1)
    assert asked(roster, batch(0, 1)) == {2: [0], 7: [1]}
    assert grid.asked == [2, 3, 4, 4, 7]


def test_a_node_that_is_gone_and_connected_again_is_in_log_and_record_by_its_name(caplog):
    grid = Nodes({2: [0], 3: [1]}, {2: "north", 3: "south"})
    roster = roster_of(grid)
    hosted = grid.hosts.pop(3)
    roster.refresh(grid, timeout=1)
    assert (roster.given_up, roster.back) == ([3], [])
    assert "nodes south (3) are disconnected" in caplog.text
    roster.refresh(grid, timeout=1)
    assert (roster.given_up, roster.back) == ([], [])
    grid.hosts[3] = hosted
    roster.refresh(grid, timeout=1)
    assert (roster.given_up, roster.back) == ([], [3])
    assert "node south (3) is connected again" in caplog.text
    assert asked(roster, batch(0, 1)) == {2: [0], 3: [1]}


def test_node_ids_as_large_as_flower_draws_them_are_kept_to_the_last_digit():
    one, other = 2**64 - 3, 2**63 + 5
    assert asked(roster_of(Nodes({one: [0, 2], other: [1]})), batch(0, 1, 2, 3)) == {one: [0, 2], other: [1]}


NAMES = {2: "north", 3: "south", 4: "north"}
SHARES = {"north": "0-9,12", "south": "10-11,13-19"}


def test_a_node_is_believed_only_for_the_units_that_the_operator_gave_its_name(caplog):
    grid = Nodes({2: range(UNITS), 3: range(UNITS), 9: range(UNITS)}, NAMES)
    roster = roster_of(grid, SHARES)
    own = {2: [*range(10), 12], 3: [10, 11, *range(13, 20)]}
    assert asked(roster, batch(*range(UNITS))) == own
    assert (
        "node north (2) claims units that it may not speak for, refused: 10, 11, 13, 14, 15 and 4 more" in caplog.text
    )
    assert grid.asked == [2, 3]  # a node that may speak for nobody is not even asked
    assert "node 9 is not in federation.hosts" in caplog.text
    roster.refresh(grid, timeout=1)
    assert caplog.text.count("node 9 is not in") == 1


@pytest.mark.parametrize("hosts", [SHARES, "trusted"])
def test_a_node_that_says_all_may_train_all_only_where_the_operator_says_so(hosts, caplog):
    grid = Nodes({2: None, 3: [10]}, NAMES)
    assert asked(roster_of(grid, hosts), batch(0, 10)) == {3: [10]}
    assert "node north (2) did not say which clients it hosts: it says all of them" in caplog.text
    assert asked(roster_of(grid, SHARES | {"north": "all"}), batch(0, 10)) == {2: [0], 3: [10]}


def malformed(message: Message, kind: str) -> RecordDict:
    content = RoundAnswer().content(order_in(message))
    head = content["answer"]["head"]
    return {
        "a unit that does not exist": RecordDict({"answer": ConfigRecord({"head": head[:-1] + b"\x80"})}),
        "too short": RecordDict({**content, "answer": ConfigRecord({"head": head[:-1]})}),
        "too long": RecordDict({**content, "answer": ConfigRecord({"head": head + bytes(10**6)})}),
        "text": RecordDict({**content, "answer": ConfigRecord({"head": "0-9"})}),
        "no answer": RecordDict({"arrays": content["arrays"]}),
        "of an older fedamp": RecordDict({"hosts": ConfigRecord({"all": False, "clients": [3]})}),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["a unit that does not exist", "too short", "too long", "text", "no answer", "of an older fedamp"]
)
def test_malformed_claims_name_the_node_and_the_others_train(kind, caplog):
    grid = Nodes({2: [], 3: [10]}, NAMES)
    grid.send_and_receive = lambda messages, timeout: [
        claim(messages[1], [10]),
        Message(malformed(messages[0], kind), reply_to=messages[0]),
    ]
    for number, hosts in enumerate([SHARES, "trusted"]):
        caplog.clear()
        flower_ids(grid)
        assert asked(roster_of(grid, hosts), batch(0, 10)) == {3: [10]}, number
        assert "node north (2) " in caplog.text


def flower_ids(grid: Nodes) -> None:
    """Have a grid give the messages ids before it sends them."""
    send = grid.send_and_receive

    def sent(messages, timeout):
        for message in messages:
            flower.set_message_id(message, str(next(grid.numbers)))
        return send(messages, timeout)

    grid.send_and_receive = sent


def test_a_node_cannot_answer_in_the_name_of_another(caplog):
    """What a reply says of its sender is the sender's own word: Flower checks it against nothing that the app sees."""
    grid = Nodes({2: [], 3: []}, {2: "north", 3: "south"})

    def forged(messages, timeout):
        [to_north, _] = messages
        reply = claim(to_north, [10, 11])
        reply.metadata.__dict__["_src_node_id"] = 3
        return [reply]

    grid.send_and_receive = forged
    flower_ids(grid)
    assert asked(roster_of(grid, SHARES), batch(10, 11)) == {}
    assert "a reply in the name of node 3 was left out" in caplog.text


def test_real_nodes_without_a_word_of_the_operator_are_not_asked():
    grid = Nodes({2: [0]})
    with pytest.raises(DeploymentError, match=r"federation\.hosts is missing.*site0: 0-19.*trusted") as caught:
        roster_of(grid, None)
    assert "\n" not in str(caught.value)
    assert grid.asked == []
    with pytest.raises(DeploymentError, match=r"federation\.hosts\.north: there is no unit 20; expected: 0-19"):
        roster_of(grid, {"north": "0-20"})
