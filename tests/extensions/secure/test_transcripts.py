"""Transcripts of secure aggregation for other implementations: by fedamp, and by a reader that shares no code."""

import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedamp.errors import FederationError
from fedamp.extensions.secure.collector import Collector
from fedamp.extensions.secure.member import ProtocolMember
from fedamp.extensions.secure.protocol import ProtocolSettings
from tests.extensions.secure import second_reader
from tests.extensions.secure.make_transcripts import FILE, FORMAT

CONTENT = json.loads(FILE.read_text())


def of_hex(told):
    return {name: bytes.fromhex(data) for name, data in told.items()}


def signing_keys(nodes):
    private = {name: bytes.fromhex(each["signing_key"]) for name, each in nodes.items()}
    keys = {name: Ed25519PrivateKey.from_private_bytes(each) for name, each in private.items()}
    return keys, {name: key.public_key() for name, key in keys.items()}


def member_of(told, name):
    settings, context = ProtocolSettings(**told["settings"]), bytes.fromhex(told["context"])
    secret = bytes.fromhex(told["nodes"][name]["secret"])
    return ProtocolMember(settings, context, name, told["agreement"], secret)


def first_fault(told):
    """What fedamp's nodes and server find, in the order of the messages."""
    collector = Collector(ProtocolSettings(**told["settings"]), bytes.fromhex(told["context"]), told["words"], 32)
    lists = collector.members(of_hex(told["keys"]))
    name = next(iter(told["nodes"]))
    try:
        member_of(told, name).shares(lists[name], signing_keys(told["nodes"])[1])
    except ValueError:
        return "keys"
    collector.shares(of_hex(told["shares"]))
    if collector.masked(of_hex(told["masked"])).hex() != told["survivors"]:
        return "survivors"
    try:
        collector.agreed(of_hex(told["signatures"]))
    except FederationError:
        return "signatures"
    try:
        total = collector.unmasked(of_hex(told["unmasked"]))
    except FederationError:  # too few of them are left
        return "shares"
    return "shares" if collector.errors else None if total.tolist() == told["sum"] else "sum"


def test_each_hostile_transcript_is_found_by_both_readers(subtests):
    assert CONTENT["format"] == FORMAT
    for number, case in enumerate(CONTENT["transcripts"]):
        with subtests.test(number=number):
            assert first_fault(case["transcript"]) == case["finding"]
    assert second_reader.main([str(FILE)]) == 0
    found = {case["finding"] for case in CONTENT["transcripts"]}
    assert found == {None, "keys", "survivors", "signatures", "shares", "sum"}


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_with_the_same_secret_sends_the_same_bytes(number):
    told = CONTENT["transcripts"][number]["transcript"]
    collector = Collector(ProtocolSettings(**told["settings"]), bytes.fromhex(told["context"]), told["words"], 32)
    keys, peers = signing_keys(told["nodes"])
    lists = collector.members(of_hex(told["keys"]))
    boxes = collector.shares(of_hex(told["shares"]))
    for name, node in told["nodes"].items():
        member = member_of(told, name)
        assert member.keys(keys[name]).hex() == told["keys"][name]
        assert member.shares(lists[name], peers).hex() == told["shares"][name]
        masked = member.masked(boxes[name], np.array(node["words"], np.uint32)).hex()
        if name not in told["masked"]:
            continue
        assert masked == told["masked"][name]
        survivors = bytes.fromhex(told["survivors"])
        assert member.agree(survivors, keys[name]).hex() == told["signatures"][name]
        signatures = {collector.list.number_of[each]: data for each, data in of_hex(told["signatures"]).items()}
        assert member.unmask(survivors, signatures, peers).hex() == told["unmasked"][name]
