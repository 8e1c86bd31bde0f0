"""The only source of randomness: an independent stream for every purpose, round and client.

Streams are addressed, never shared: ``stream(seed, "noise", 3)`` gives the same numbers whatever was drawn
before it, by whom, or on how many workers. That is what makes a run reproducible and resumable without
storing generator states.
"""

import hashlib
import secrets

import numpy as np
from numpy.typing import NDArray


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """The generator of one purpose, for example ``stream(seed, "noise", round)``.

    Args:
        seed: the run's seed, any non-negative integer (a deployment uses 128 bits from the operating system).
        purpose: what the numbers are for. Two purposes never share a stream.
        indices: round, client or whatever else tells this use from others; non-negative integers.

    Returns:
        A generator (counter-based Philox) keyed by 128 bits of a cryptographic hash of the address.
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, indices, bytes_=16)))


def client_seeds(seed: int, purpose: str, round_: int, clients: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 63-bit seed for each client of a round, which tells its holder nothing about any other client's.

    The server sends a node the seeds of the node's own clients and nothing else; each is a cryptographic hash of the
    run's seed and the address.

    Returns:
        Array of shape (len(clients),).
    """
    seeds = [_key(seed, purpose, (round_, int(client)), bytes_=8) >> 1 for client in clients]
    return np.array(seeds, dtype=np.uint64)


def public_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed that nodes and adversaries may know: it tells nothing about ``seed``."""
    return _key(seed, f"public {purpose}", (), bytes_=8) >> 1


def uniforms(seeds: NDArray[np.uint64], purpose: str, count: int) -> NDArray[np.float64]:
    """``count`` numbers in [0, 1) from each seed, the same whichever seeds are asked for together.

    For what a node draws inside its clients (data order, masks), where thousands of addressed streams are needed a
    round and a generator object each would dominate the cost: a 64-bit mixing function of seed, purpose and counter
    (Steele, Lea, Flood 2014, SplitMix), vectorised.

    Returns:
        Array of shape (len(seeds), count).
    """
    key = np.uint64(_key(0, purpose, (), bytes_=8))
    with np.errstate(over="ignore"):
        per_seed = _mix(seeds.astype(np.uint64) + key)
        counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        bits = _mix(per_seed[:, None] + counters[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seed_from_system() -> int:
    """A 128-bit seed from the operating system, for deployments."""
    return secrets.randbits(128)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _key(seed: int, purpose: str, indices: tuple[int, ...], bytes_: int) -> int:
    address = "/".join([str(seed), purpose, *(str(int(index)) for index in indices)])
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=bytes_).digest(), "little")
