"""Rounds of secure aggregation: sums to the bit, whoever drops out; and what a hostile server or node can try."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import settings as settings_of_tests
from hypothesis import strategies as st

from fedamp.errors import FederationError
from fedamp.extensions.secure.member import DIGEST, SEALED, ProtocolMember, pair_key
from fedamp.extensions.secure.protocol import (
    KEY,
    KEYS,
    SHARE,
    MemberKeys,
    MemberList,
    commitment_to,
    public_part,
    set_to_bytes,
    sign,
)
from tests.extensions.secure.federation import Round, settings

FIVE = settings(5, 1, 1)
EXCHANGES = ["keys", "shares", "masked", "agree", "unmask"]


@settings_of_tests(max_examples=30)
@given(
    nodes=st.integers(2, 9),
    data=st.data(),
    bits=st.sampled_from([32, 64]),
    length=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_the_sum_is_the_plain_one_to_the_bit_whoever_drops_out(nodes, data, bits, length, seed):
    dropped = data.draw(st.integers(0, (nodes - 1) // 2))
    lost = {each: set() for each in EXCHANGES}
    for number in data.draw(st.sets(st.integers(0, nodes - 1), max_size=dropped)):
        lost[data.draw(st.sampled_from(EXCHANGES))].add(f"node{number:04}")
    found, expected = Round(settings(nodes, dropped, 0), bits, length, seed, lost=lost).play()
    np.testing.assert_array_equal(found, expected)


def test_in_a_sparse_graph_the_sum_is_the_plain_one_to_the_bit():
    sparse = settings(70, 3, 1)
    assert not sparse.is_complete
    lost = {"keys": {"node0003"}, "masked": {"node0011"}, "unmask": {"node0020"}}
    found, expected = Round(sparse, lost=lost).play()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_with_fewer_nodes_than_agreed_there_is_no_sum(exchange):
    names = {"node0000", "node0001", "node0002"}
    with pytest.raises((FederationError, ValueError), match="expected"):
        Round(FIVE, lost={exchange: names}).play()


@pytest.mark.parametrize("exchange", ["agree", "unmask"])
def test_garbage_costs_nothing_but_that_nodes_help(exchange):
    found, expected = Round(FIVE, garbage={exchange: {"node0002"}}).play()
    np.testing.assert_array_equal(found, expected)


def test_false_shares_end_the_round_and_the_node_is_named():
    with pytest.raises(FederationError, match="node0002"):
        Round(FIVE, garbage={"shares": {"node0002"}}).play()


@pytest.mark.parametrize("size", [0, 1, 10_000])
@pytest.mark.parametrize("exchange", ["members", "shares", "masked"])
def test_answers_of_another_size_are_left_out(exchange, size):
    played = Round(FIVE)
    if exchange == "members":
        keys = {name: bytes([9] * KEYS) for name in played.names[:4]}
        played.begin()
        assert set(played.collector.members(keys | {"node0004": bytes(size)})) == set(played.names[:4])
        return
    played.mask()
    step = getattr(played.collector, exchange)
    with pytest.raises(FederationError, match=f"has {size} bytes"):
        step(dict.fromkeys(played.names, bytes(size)))


def test_a_node_with_public_keys_of_low_order_is_left_out():
    played = Round(FIVE)
    played.begin()
    keys = dict(zip(played.names, (each.write() for each in played.collector.list.keys), strict=True))
    assert "node0001" not in played.collector.members(keys | {"node0001": bytes(2 * KEY) + keys["node0001"][2 * KEY :]})


# A hostile server.


def listed(played):
    """The members' keys by name, for a node that has sent its keys and not dealt."""
    played.begin()
    fresh = {name: ProtocolMember.enter(FIVE, b"again", name, "agreement") for name in played.names}
    return fresh, {name: member.keys(played.signing[name]) for name, member in fresh.items()}


def test_a_node_refuses_a_list_with_other_signatures():
    played = Round(FIVE)
    fresh, keys = listed(played)
    stranger = Ed25519PrivateKey.generate()
    forged = fresh["node0001"].keys(stranger)
    another_run = ProtocolMember.enter(FIVE, b"again", "node0001", "another").keys(played.signing["node0001"])
    another_round = ProtocolMember.enter(FIVE, b"before", "node0001", "agreement").keys(played.signing["node0001"])
    unsigned = forged[: 3 * KEY] + bytes(len(forged) - 3 * KEY)
    for false in (forged, another_run, another_round, unsigned):
        data = MemberList.of(FIVE, b"again", keys | {"node0001": false}).write()
        with pytest.raises(ValueError, match="node0001 is not of its key"):
            fresh["node0000"].shares(data, played.peers)


def test_a_node_refuses_strangers_too_few_and_a_list_without_itself():
    played = Round(FIVE)
    fresh, keys = listed(played)
    stranger = {"zoe": keys["node0004"]} | {name: keys[name] for name in played.names[:4]}
    four = {name: keys[name] for name in played.names[1:]}
    replaced = keys | {
        "node0000": ProtocolMember.enter(FIVE, b"again", "node0000", "agreement").keys(played.signing["node0000"])
    }
    for false, why in (
        (stranger, "zoe is not in"),
        (four, "not among the members"),
        (replaced, "not those that it sent"),
    ):
        with pytest.raises(ValueError, match=why):
            fresh["node0000"].shares(MemberList.of(FIVE, b"again", false).write(), played.peers)
    with pytest.raises(ValueError, match="3 members; expected: 4 to 5"):
        MemberList.of(FIVE, b"again", {name: keys[name] for name in played.names[:3]})


def test_a_node_deals_its_shares_once():
    """A second dealing, encrypted by the same keys, would tell the server both."""
    played = Round(FIVE)
    played.begin()
    with pytest.raises(ValueError, match="dealt its shares already"):
        played.member("node0000").shares(played.lists["node0000"], played.peers)


def test_a_node_masks_with_all_its_neighbours_or_not_at_all():
    """A server that chose the neighbours of each node would choose the graph, and open the sum of a part of it."""
    played = Round(FIVE)
    boxes = played.begin()["node0000"]
    for some in ({}, {number: boxes[number] for number in (1, 2, 3)}, boxes | {0: boxes[1]}, boxes | {-1: boxes[4]}):
        with pytest.raises(ValueError, match="expected: of each neighbour"):
            played.member("node0000").masked(some, played.words["node0000"].copy())


def test_nodes_with_other_lists_share_no_mask():
    first, second = Round(FIVE, context=b"one"), Round(FIVE, context=b"two")
    first.begin()
    second.begin()
    secret, (one, two) = bytes(range(32)), (first.collector.list, second.collector.list)
    same_keys = MemberList(FIVE, two.context, one.names, one.keys)
    assert pair_key(secret, one, 0, 1) != pair_key(secret, same_keys, 0, 1)


def test_a_repeated_public_key_gives_another_mask():
    """A colluding node with the key of an honest one would have its mask, and could cancel it."""
    played = Round(FIVE)
    played.begin()
    members = played.collector.list
    keys = (members.keys[2], *members.keys[1:])
    repeated = MemberList(FIVE, members.context, members.names, keys)
    assert pair_key(bytes(range(32)), repeated, 1, 0) != pair_key(bytes(range(32)), repeated, 1, 2)


def test_a_node_sends_one_masked_sum():
    played = Round(FIVE)
    boxes = played.begin()["node0000"]
    member = played.member("node0000")
    member.masked(boxes, played.words["node0000"].copy())
    with pytest.raises(ValueError, match="already"):
        ProtocolMember.of(member.state).masked(boxes, played.words["node0000"].copy())


@pytest.mark.parametrize("sparse", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["complete", "sparse"])
def test_other_survivors_for_other_nodes_give_no_share_of_the_second_secret(sparse):
    played = Round(settings(70, 10, 3) if sparse else FIVE)
    assert played.settings.is_complete != sparse
    everybody = played.mask()
    count = len(played.names)
    fewer = set_to_bytes(set(range(count)) - {1}, count)
    left = played.agree()
    for name in left[:1] + left[2:4]:  # each has signed one set
        with pytest.raises(ValueError, match="signed other survivors"):
            played.member(name).agree(fewer, played.signing[name])
    member = played.member("node0000")
    with pytest.raises(ValueError, match="0 nodes have signed"):  # signatures of another set
        member.unmask(fewer, played.signatures, played.peers)
    some = dict(list(played.signatures.items())[: played.settings.signers - 1])
    last = max(some)
    for false in (some, some | {last - count: some[last]}, some | {count - 1: some[last]}, some | {count: some[last]}):
        with pytest.raises(ValueError, match=f"{len(some)} nodes have signed"):
            member.unmask(everybody, false, played.peers)
    answer = member.unmask(everybody, played.signatures, played.peers)
    again = ProtocolMember.of(member.state)
    assert again.unmask(everybody, played.signatures, played.peers) == answer
    with pytest.raises(ValueError, match="other survivors"):
        again.unmask(fewer, played.signatures, played.peers)


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        (bytes([0b11100000]), "3 survivors; expected: at least 4"),
        (bytes([0b01111000]), "not among the survivors"),
        (bytes([0b11111100]), "no set of members"),
        (bytes(2), "no set of members"),
    ],
)
def test_sets_of_survivors_that_a_node_refuses(survivors, why):
    played = Round(FIVE)
    played.mask()
    for ask in (
        lambda member: member.agree(survivors, played.signing["node0000"]),
        lambda member: member.unmask(survivors, {}, played.peers),
    ):
        with pytest.raises(ValueError, match=why):
            ask(played.member("node0000"))


def test_an_answer_holds_one_share_of_each_node():
    played = Round(FIVE, lost={"masked": {"node0004"}})
    played.mask()
    played.agree()
    member = played.member("node0000")
    held = dict(member.held)
    answer = member.unmask(played.survivors, played.signatures, played.peers)
    parts = [answer[start : start + SHARE] for start in range(0, len(answer), SHARE)]
    holders = [1, 2, 3, 4, 0]
    for holder, part in zip(holders, parts, strict=True):
        of_mask, of_seed = held[holder][:SHARE], held[holder][SHARE:]
        assert part == (of_mask if holder == 4 else of_seed)


# Hostile nodes.


def test_a_node_that_deals_another_secret_spoils_no_sum(monkeypatch):
    """Its shares fit together, but not to what it has signed: no sum that still has a mask is returned."""
    genuine = ProtocolMember.shares

    def shares(member, members, peers):
        true = member.seed
        if member.name == "node0003":
            member.seed = bytes(32)
        reply = genuine(member, members, peers)
        member.seed = true
        return reply

    monkeypatch.setattr(ProtocolMember, "shares", shares)
    with pytest.raises(FederationError, match="node0003 has dealt false shares"):
        Round(FIVE).play()


def test_who_deals_a_right_share_with_a_false_digest_is_named_and_not_its_holder():
    """node0003 tells the server another digest of what it deals to node0001."""
    played, genuine = Round(FIVE), ProtocolMember.shares

    def shares(member, members, peers):
        reply = genuine(member, members, peers)
        if member.name != "node0003":
            return reply
        start = SEALED * 4 + 2 * DIGEST + DIGEST  # of the seed's share; its holders are 0, 1, 2, 4, 3
        return reply[:start] + bytes(DIGEST) + reply[start + DIGEST :]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ProtocolMember, "shares", shares)
        found, expected = played.play()
    np.testing.assert_array_equal(found, expected)
    [error] = played.collector.errors
    assert error.startswith("node node0003: 1 of its holders say")


def test_a_holder_that_alters_a_share_is_named_and_not_its_dealer():
    played = Round(FIVE, garbage={"unmask": {"node0002"}})
    played.play()
    assert played.collector.errors == ["node node0002: 5 of its shares are not those that it was given"]


# A node's files, put back or found later.


def test_after_unmasking_nothing_is_left_from_which_a_sum_follows():
    played = Round(FIVE)
    played.mask()
    before = {name: played.member(name) for name in played.names}
    for name in played.agree():
        member = played.member(name)
        answer = member.unmask(played.survivors, played.signatures, played.peers)
        state, old = member.state, before[name]
        for secret in (old.secret, old.mask, old.encryption, old.seed, *old.held.values()):
            assert secret
            assert secret.hex() not in state.replace(answer.hex().encode(), b"").decode()
        assert ProtocolMember.of(state).unmask(played.survivors, {}, played.peers) == answer


def test_a_state_put_back_deals_the_same_shares_to_the_same_list_alone():
    """Else two dealings would be encrypted under one key and nonce."""
    played = Round(FIVE)
    fresh, keys = listed(played)
    before, four = fresh["node0000"].state, {name: keys[name] for name in played.names[:4]}
    lists = [MemberList.of(FIVE, b"again", each).write() for each in (keys, keys, four)]
    first, again, other = (ProtocolMember.of(before).shares(each, played.peers) for each in lists)
    assert first == again
    assert not {first[SEALED * place : SEALED * (place + 1)] for place in range(4)} & {
        other[SEALED * place : SEALED * (place + 1)] for place in range(3)
    }


def test_keys_of_an_attempt_are_for_one_question():
    one = ProtocolMember.enter(FIVE, b"again", "node0000", "agreement", question=b"one")
    other = replace(one, question=b"other")
    assert not {one.mask, one.encryption, one.seed} & {other.mask, other.encryption, other.seed}


def test_a_node_refuses_a_member_that_has_forgotten_what_it_signed():
    played = Round(FIVE)
    played.begin()
    fresh = {name: ProtocolMember.enter(FIVE, b"again", name, "agreement", last=6) for name in played.names}
    keys = {name: member.keys(played.signing[name]) for name, member in fresh.items()}
    data = MemberList.of(FIVE, b"again", keys).write()
    with pytest.raises(ValueError, match="node0003 has no record of a round that it signed"):
        ProtocolMember.of(fresh["node0000"].state).shares(data, played.peers, {"node0003": 7})
    assert fresh["node0000"].shares(data, played.peers, dict.fromkeys(played.names, 6))
    # The number is signed: the server cannot write another.
    forged = keys["node0003"][: 3 * KEY] + (7).to_bytes(4) + keys["node0003"][3 * KEY + 4 :]
    with pytest.raises(ValueError, match="node0003 is not of its key"):
        fresh["node0001"].shares(MemberList.of(FIVE, b"again", keys | {"node0003": forged}).write(), played.peers)


def test_a_state_and_keys_can_be_read_back():
    played = Round(FIVE)
    played.mask()
    for name in played.names:
        member = played.member(name)
        assert ProtocolMember.of(member.state) == member
    unsigned = MemberKeys(public_part(bytes(32)), public_part(b"1" * 32), commitment_to(b"2" * 32), b"")
    signature = sign(played.signing["node0000"], b"content")
    keys = MemberKeys(unsigned.mask, unsigned.encryption, unsigned.commitment, signature)
    assert MemberKeys.read(keys.write()) == keys
