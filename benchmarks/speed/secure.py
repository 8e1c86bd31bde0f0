"""What secure aggregation costs: processor seconds of a node and of the server, and bytes, beside a plain sum.

    python -m benchmarks.speed.secure            half an hour on one core; writes benchmarks/speed/secure.json

The protocol of fedamp.extensions.secure, without Flower and without training: words of 32 bits, all messages as bytes.
``dropped`` nodes send no masked words, so the server opens their masks. Seconds and bytes of a node are the median of
those that answer to the end. Beside it the masks that Flower's own SecAgg+ would make and add, for 64 neighbours, with
its generator (seeds of 32 bits).
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.record import made, store
from fedamp.extensions.secure.collector import Collector
from fedamp.extensions.secure.member import ProtocolMember
from fedamp.extensions.secure.protocol import ProtocolSettings

RESULTS = Path(__file__).with_suffix(".json")
CASES = [
    (nodes, words, share)
    for nodes, words in ((10, 10**4), (10, 10**6), (10, 10**7), (64, 10**6), (64, 10**7), (200, 10**6), (1000, 10**4))
    for share in (0.0, 0.05, 0.2)
] + [(1000, 10**6, 0.05)]
CONTEXT = b"benchmark"


def played(nodes: int, count: int, share: float) -> dict:
    """One round; the sum is checked."""
    settings = ProtocolSettings(nodes, int(0.2 * nodes), int(0.1 * nodes))
    settings.check()
    keys = {f"node{number:04d}": Ed25519PrivateKey.generate() for number in range(nodes)}
    peers = {name: key.public_key() for name, key in keys.items()}
    members = {name: ProtocolMember.enter(settings, CONTEXT, name, "benchmark") for name in keys}
    words = np.random.default_rng(1).integers(0, 2**32, count, dtype=np.uint32)
    collector, node, sent, server, bytes_down = Collector(settings, CONTEXT, count, 32), {}, {}, 0.0, 0

    def ask(name: str, call, *arguments):
        began = time.process_time()
        reply = call(*arguments)
        node[name] = node.get(name, 0.0) + time.process_time() - began
        sent[name] = sent.get(name, 0) + len(reply)
        return reply

    def serve(call, *arguments):
        nonlocal server
        began = time.process_time()
        found = call(*arguments)
        server += time.process_time() - began
        return found

    lists = serve(collector.members, {name: ask(name, member.keys, keys[name]) for name, member in members.items()})
    bytes_down += sum(map(len, lists.values()))
    shares = {name: ask(name, members[name].shares, told, peers) for name, told in lists.items()}
    boxes = serve(collector.shares, shares)
    bytes_down += sum(len(box) for found in boxes.values() for box in found.values())
    gone = set(list(boxes)[: int(share * nodes)])
    expected = np.zeros(count, np.uint32)
    replies = {}
    for name, box in boxes.items():
        if name not in gone:
            expected += words
            replies[name] = ask(name, members[name].masked, box, words.copy())
    survivors = serve(collector.masked, replies)
    names = [collector.list.names[number] for number in sorted(collector.survivors)]
    signed = serve(collector.agreed, {name: ask(name, members[name].agree, survivors, keys[name]) for name in names})
    opened = {name: ask(name, members[name].unmask, survivors, signed, peers) for name in names}
    total = serve(collector.unmasked, opened)
    assert (total == expected).all()
    bytes_up = statistics.median(sent[name] for name in names)
    return {
        "nodes": nodes,
        "parameters": count,
        "dropped": share,
        "neighbours": settings.neighbours,
        "node_seconds": statistics.median(node[name] for name in names),
        "server_seconds": server,
        "node_bytes_up": bytes_up,
        "node_bytes_down": bytes_down / nodes,
        "bytes_up_over_words": bytes_up / (4 * count),
    }


def flowers_masks(count: int, neighbours: int) -> float | None:
    """Seconds in which Flower's SecAgg+ makes and adds a node's masks; None: it is not in this version."""
    try:
        from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition
        from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    except ImportError:
        return None
    vector, began = [np.zeros(count, np.int64)], time.process_time()
    for seed in range(neighbours + 1):
        vector = parameters_addition(vector, pseudo_rand_gen(seed.to_bytes(32, "big"), 1 << 32, [(count,)]))
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000, help="of the largest case")
    asked = parser.parse_args()
    begun, found = made(), []
    for nodes, count, share in CASES:
        if nodes <= asked.nodes:
            found.append(played(nodes, count, share))
            print(json.dumps(found[-1]), flush=True)
    flower = {str(count): flowers_masks(count, 64) for count in (10**6, 10**7)}
    store(RESULTS, begun | {"rounds": found, "flower_masks_of_64_neighbours_seconds": flower})


if __name__ == "__main__":
    main()
