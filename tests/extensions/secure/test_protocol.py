"""The graph and the thresholds of secure aggregation, against simulation and enumeration."""

import itertools

import numpy as np
import pytest

from fedamp.extensions.secure import protocol
from fedamp.extensions.secure.protocol import MemberKeys, MemberList, ProtocolSettings, secret_of, shares_of
from tests.extensions.secure.federation import settings


@pytest.mark.parametrize("nodes", [2, 3, 5, 10, 64])
def test_of_few_nodes_no_two_sets_of_holders_give_both_secrets(nodes):
    for dropped, colluding in itertools.product(range(nodes), repeat=2):
        found = ProtocolSettings(nodes, dropped, colluding)
        try:
            found.check()
        except ValueError:
            assert nodes <= 2 * dropped + colluding or nodes - colluding < 2
            continue
        honest = nodes - colluding
        assert 2 * (found.signers - colluding) > honest  # each honest node signs once
        assert colluding < found.threshold <= nodes - dropped
        assert found.signers <= nodes - dropped


def members(found, nodes, seed):
    random = np.random.default_rng(seed)
    names = tuple(f"{number:04}" for number in range(nodes))
    keys = tuple(MemberKeys(random.bytes(32), random.bytes(32), random.bytes(32), b"") for _ in names)
    return MemberList(found, b"context", names, keys)


@pytest.mark.parametrize(("nodes", "dropped", "colluding"), [(100, 5, 5), (200, 20, 5)])
def test_in_the_sparse_graph_the_honest_survivors_are_connected(nodes, dropped, colluding):
    """Members as few as nodes accept, and as many colluding ones as stated; survivors that the nodes accept."""
    found = settings(nodes, dropped, colluding)
    assert not found.is_complete
    for seed in range(4):
        graph = members(found, nodes - dropped * (seed % 2), seed)
        count = len(graph.names)
        random = np.random.default_rng(seed)
        survivors = frozenset(random.permutation(count)[: found.survivors].tolist())
        graph.check_survivors(survivors)
        bad = set(random.permutation(count)[:colluding].tolist())
        honest = set(survivors) - bad
        reached, left = set(), [min(honest)]
        while left:
            if (at := left.pop()) not in reached:
                reached.add(at)
                left.extend(set(graph.neighbours(at)) & honest)
        assert reached == honest
        assert all(len(set(graph.neighbours(one)) & bad) < found.threshold for one in range(count))
        assert all(one in graph.neighbours(other) for one in range(count) for other in graph.neighbours(one))


def test_survivors_that_leave_a_gap_in_the_circle_are_refused():
    found = settings(300, 40, 10)
    graph = members(found, 300, 1)
    gap = graph.circle[10 : 10 + found.neighbours // 2]
    assert len(gap) <= 40
    with pytest.raises(ValueError, match="members in a row survive"):
        graph.check_survivors(frozenset(range(300)) - set(gap))


def test_the_bounds_on_colluding_neighbours_hold_in_simulation(monkeypatch):
    """At a probability of 1/100 for all nodes together, which can be seen: 2,000 lists, 6 deviations."""
    monkeypatch.setattr(protocol, "INSECURE", 0.01)
    found = ProtocolSettings(200, 20, 10)
    limit, random, wrong, lists = found._colluding(20), np.random.default_rng(0), 0, 2000
    for _ in range(lists):
        here = np.zeros(180, int)
        here[random.permutation(180)[:10]] = 1
        wrong += np.convolve(np.concatenate([here, here[:19]]), np.ones(20, int), "valid").max() > limit
    assert wrong / lists < 0.01 + 6 * np.sqrt(0.01 / lists)


def test_fewer_shares_than_the_threshold_fit_every_secret():
    holders = [0, 3, 7, 8]
    shares = shares_of(b"s" * 32, holders, 3, seed=1)
    for chosen in itertools.permutations(holders, 3):
        assert secret_of({holder: shares[holder] for holder in chosen}) == b"s" * 32
    # With two shares of it, and one of another holder's choice, any secret comes out.
    other = shares_of(b"t" * 32, holders, 3, seed=2)
    with pytest.raises(ValueError, match="do not fit"):
        secret_of({0: shares[0], 3: shares[3], 7: other[7]})


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\1a", bytes(400), b"\xff" * 999, b"\0\0\0\5a\0bcd"])
def test_lists_of_members_with_another_form_are_refused(data):
    with pytest.raises(ValueError, match=r"^.+$"):
        MemberList.read(settings(3, 1, 0), b"context", data)
