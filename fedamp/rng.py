"""The only source of randomness: an independent stream for every purpose, round and client.

``stream(seed, "noise", 3)`` gives the same numbers whatever was drawn before, for any number of workers. So a run is
reproducible and resumable without stored generator states. Only the accountant has coins of its own
(:mod:`fedamp.accounting.sampling`), which are independent of all data.

Secret randomness comes from a cryptographic generator: :func:`stream` and :func:`client_words`. Check-ins, submodels,
masks and noise are secret, since the accountant's amplification rests on hiding them. Public randomness (the partition
of records, initial parameters) comes from statistical generators, whose names begin with ``public``.

:mod:`fedamp.noise` turns words of a stream into noise. docs/threat-model.md says who knows which seed.
"""

import hashlib
import secrets
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]

SEED_BYTES = 32  # of a client's seed
_BLOCK = 1 << 15  # numbers made at a time: they stay in the cache
_PIECE = 1 << 30  # bytes; a cipher takes less than 2**31 at a time
_ZEROS = memoryview(bytes(8 * _BLOCK))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Stream:
    """A stream of random numbers with one address; without its key of 32 bytes they look uniform.

    It is the keystream of AES-256 in counter mode, counted from zero (NIST SP 800-38A, section 6.5), as little-endian
    words. All methods read on from where the last one stopped.

    Args:
        key: 32 bytes. A key must serve one purpose only.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        """Return the next ``count`` independent, uniform words of 64 bits, shape [count]."""
        return np.frombuffer(self._bytes(8 * count), dtype="<u8")

    def integers(self, bound: int, count: int) -> NDArray[np.uint32]:
        """Draw independent whole numbers, exactly uniform in 0 ... bound - 1.

        The number is the upper half of a product of a word of 32 bits and the bound; those whose lower half is below
        2**32 mod bound are drawn again (Lemire 2019). So the number of words that a call takes from the stream varies.

        Args:
            bound: 1 to 2**32.
            count: how many.

        Returns:
            Shape [count].

        Example:
            >>> stream(7, "check-in", 1).integers(10, 5).tolist()
            [1, 0, 5, 8, 4]
        """
        drawn, done = np.empty(count, dtype=np.uint32), 0
        while done < count:
            halves = np.frombuffer(self._bytes(4 * min(count - done, _BLOCK // 4)), dtype="<u4")
            products = halves.astype(np.uint64) * np.uint64(bound)
            kept = products[(products & np.uint64(2**32 - 1)) >= np.uint64(2**32 % bound)] >> np.uint64(32)
            drawn[done : done + len(kept)] = kept
            done += len(kept)
        return drawn

    def masked(self, data: bytes | memoryview) -> bytearray:
        """Return the bytes, each XORed with the next one of the stream; the same stream undoes it."""
        hidden = bytearray(len(data))
        left, into = memoryview(data), memoryview(hidden)
        while left:
            done = self._cipher.update_into(left[:_PIECE], into)
            left, into = left[done:], into[done:]
        return hidden

    def _bytes(self, count: int) -> bytearray:
        drawn = bytearray(count)
        left = memoryview(drawn)
        while left:
            left = left[self._cipher.update_into(_ZEROS[: len(left)], left) :]
        return drawn


def stream(seed: int, purpose: str, *indices: int) -> Stream:
    """Open the secret stream of one purpose, for example ``stream(seed, "check-in", round)``.

    Its key of 256 bits is the keyed hash (BLAKE2b, RFC 7693) of the address; the hash's key is the seed. So streams of
    different addresses are independent for anyone who does not know the seed.

    Args:
        seed: the run's seed, any non-negative integer (a deployment uses 256 bits from the operating system).
        purpose: what the numbers are for. Two purposes never share a stream.
        indices: round, client or other indices of this use; non-negative integers.

    Example:
        >>> stream(7, "noise", 3).words(2).tolist() == stream(7, "noise", 3).words(2).tolist()
        True
        >>> bool((stream(7, "noise", 3).words(2) == stream(7, "noise", 4).words(2)).any())
        False
    """
    keyed = _keyed_hash(seed)
    keyed.update(_address_text(purpose, indices).encode())
    return Stream(keyed.digest())


def public_stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Open a generator for public randomness at an address of :func:`stream`: counter-based Philox.

    Philox passes statistical tests, but its key may be found from its output. So nothing that must stay hidden is drawn
    from it.

    Example:
        >>> public_stream(7, "partition").permutation(5).tolist()
        [2, 4, 3, 1, 0]
    """
    return np.random.Generator(np.random.Philox(key=_public_key(seed, purpose, indices, bytes_=16)))


def public_signs(seed: int, purpose: str, indices: Iterable[int], count: int) -> NDArray[np.float32]:
    """Return public signs, 1 or -1 with equal chance, for each index, shape [indices, count]."""
    generators = (public_stream(seed, purpose, index).bit_generator for index in indices)
    words = np.array([each.random_raw(-(-count // 64)) for each in generators], dtype="<u8")
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=count, bitorder="little")
    return bits.astype(np.float32) * np.float32(2) - np.float32(1)


def happens(words: Words, probability: float) -> NDArray[np.bool_]:
    """Decide for each word whether an event happens, with the given probability rounded down to a multiple of 2**-64.

    Rounding down is the safe side for sampling: a person takes part at most as often as charged. A float64 probability
    of at least 2**-11 is met exactly.

    Args:
        words: uniform words of 64 bits, of any shape.
        probability: in [0, 1].

    Returns:
        Truth values of the shape of ``words``.

    Example:
        >>> round(float(happens(stream(7, "check-in").words(100_000), 0.25).mean()), 2)
        0.25
    """
    if probability >= 1:
        return np.ones(words.shape, dtype=bool)
    return np.asarray(words < np.uint64(int(probability * 2.0**64)))


def client_seeds(seed: int, purpose: str, round_: int, clients: NDArray[np.int64]) -> NDArray[np.void]:
    """Derive a seed of 32 bytes for each client of a round.

    A client's seed says nothing about another's. The server sends a node only the seeds of the node's own clients.

    Args:
        seed: the run's seed.
        purpose: what the clients draw.
        round_: number of the round.
        clients: ids, shape [clients].

    Returns:
        Shape [clients], each of 32 bytes.
    """
    begun = _keyed_hash(seed)
    begun.update(f"{_address_text(purpose, (round_,))}/".encode())
    seeds = bytearray(len(clients) * SEED_BYTES)  # filled in place: millions of objects would take four times as much
    for place, client in enumerate(clients.tolist()):
        keyed = begun.copy()
        keyed.update(b"%d" % client)
        seeds[place * SEED_BYTES : (place + 1) * SEED_BYTES] = keyed.digest()
    return np.frombuffer(memoryview(seeds).toreadonly(), dtype=f"V{SEED_BYTES}")


def client_words(seeds: NDArray[np.void], purpose: str, count: int) -> Words:
    """Draw 64-bit words from each client's seed; a seed's words depend on it alone.

    For draws of a node for its clients (masks, data order): SHAKE-256 (FIPS 202) of seed and purpose. For some hundred
    words it is faster than a cipher with a new key for every client.

    Args:
        seeds: shape [clients], as :func:`client_seeds` gives them.
        purpose: what the words are for.
        count: words for each client.

    Returns:
        Shape [clients, count].
    """
    drawn = b"".join(hashlib.shake_256(seed.tobytes() + purpose.encode()).digest(8 * count) for seed in seeds)
    return np.frombuffer(drawn, dtype="<u8").reshape(len(seeds), count)


def public_uniforms(seeds: NDArray[np.uint64], purpose: str, count: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1) from each seed; a seed's numbers depend on it alone.

    For public randomness in thousands of streams (synthetic records): a 64-bit mixing function of seed, purpose and
    counter (Steele, Lea, Flood 2014, SplitMix). The numbers are multiples of 2**-53.

    Args:
        seeds: shape [seeds].
        purpose: what the numbers are for.
        count: numbers for each seed.

    Returns:
        Shape [seeds, count].
    """
    key = np.uint64(_public_key(0, purpose, (), bytes_=8))
    with np.errstate(over="ignore"):
        per_seed = _mix_bits(seeds.astype(np.uint64) + key)
        bits = _mix_bits(per_seed[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def public_seed(seed: int, purpose: str) -> int:
    """Derive a public seed of 63 bits; it says nothing about ``seed``."""
    return _public_key(seed, f"public {purpose}", (), bytes_=8) >> 1


def keyed_digest(seed: int, purpose: str, parts: Iterable[bytes]) -> str:
    """Return 256 bits in hexadecimal that identify the parts, and say nothing about them without the seed.

    The parts are hashed one after another: two lists with the same concatenation have the same digest.
    """
    keyed = hashlib.blake2b(key=bytes(stream(seed, purpose).words(4)), digest_size=SEED_BYTES)
    for part in parts:
        keyed.update(part)
    return keyed.hexdigest()


def seed_from_system() -> int:
    """Draw a seed of 256 bits from the operating system."""
    return secrets.randbits(256)


def fresh_bytes(count: int) -> bytes:
    """Draw unpredictable bytes from the operating system."""
    return secrets.token_bytes(count)


def _mix_bits(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each word, so that consecutive inputs give unrelated outputs (Steele, Lea, Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _address_text(purpose: str, indices: tuple[int, ...]) -> str:
    """Write an address as text, its parts separated by "/"."""
    return "/".join([purpose, *(str(int(index)) for index in indices)])


def _keyed_hash(seed: int) -> "hashlib.blake2b":
    """Begin BLAKE2b with the seed as its key."""
    # A seed may have any number of digits; the key of BLAKE2b has at most 64 bytes.
    return hashlib.blake2b(key=hashlib.blake2b(str(seed).encode()).digest(), digest_size=32)


def _public_key(seed: int, purpose: str, indices: tuple[int, ...], bytes_: int) -> int:
    """Hash a public address to a whole number of so many bytes."""
    address = f"{seed}/{_address_text(purpose, indices)}".encode()
    return int.from_bytes(hashlib.blake2b(address, digest_size=bytes_).digest(), "little")
