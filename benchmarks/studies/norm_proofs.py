"""What a proof would cost that a node's sum is within its clip, under secure aggregation: a sketch, not a protocol.

    python -m benchmarks.studies.norm_proofs        a minute on one core; writes benchmarks/studies/norm_proofs.json

The cheapest known way for large models: the node commits to each coordinate (Pedersen commitments on a curve), public
randomness draws k projections, and the node proves that the projections of what it has committed to are short (as in
RoFL and RiseFL). The server checks this for each node by one multi-exponentiation over all commitments.

Measured: the projections (signs from AES, 10^6 parameters), and one scalar multiplication on Curve25519 (the X25519 of
OpenSSL, constant time). Computed from it: one commitment costs a node at least one scalar multiplication by a number of
some 40 bits, 40 / 255 of the measured one; the server's multi-exponentiation needs, by Pippenger's method with windows
of 16 bits, 16 additions a coordinate, each 1 / 380 of a scalar multiplication. So all seconds are lower ends, and the
range proofs for the k projections are not in them. ``slack``: an honest sum passes with probability 1 - 1e-9, and one
with a norm above ``slack`` times the clip with less than 2^-40 (chi-square with k degrees: Gaussian projections).
"""

import json
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2

from benchmarks.record import made, store
from fedamp import rng

RESULTS = Path(__file__).with_suffix(".json")
PARAMETERS, WORD_BITS, COORDINATE_BITS = 10**6, 32, 40
POINT = 32  # bytes
ADDITIONS_OF_A_MULTIPLICATION, WINDOWS = 380, 16


def seconds_of_projections(count: int) -> float:
    """Processor seconds for ``count`` random projections of a vector, with signs that nobody chooses."""
    vector, began = (
        np.random.default_rng(1).integers(-(2**20), 2**20, PARAMETERS).astype(np.float64),
        time.process_time(),
    )
    for place in range(count):
        words = rng.stream(1, "signs", place).words(-(-PARAMETERS // 64))
        signs = np.unpackbits(words.view(np.uint8))[:PARAMETERS]
        2 * float(vector[signs.view(bool)].sum()) - float(vector.sum())
    return time.process_time() - began


def seconds_of_a_multiplication(times: int = 5000) -> float:
    private, public = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    began = time.process_time()
    for _ in range(times):
        private.exchange(public)
    return (time.process_time() - began) / times


def main() -> None:
    multiplication, rows = seconds_of_a_multiplication(), []
    commitments = PARAMETERS * multiplication * COORDINATE_BITS / 255
    check = PARAMETERS * multiplication * WINDOWS / ADDITIONS_OF_A_MULTIPLICATION
    for projections in (64, 128, 1024):
        rows.append(
            {
                "projections": projections,
                "projecting_seconds": seconds_of_projections(projections),
                "slack": float(np.sqrt(chi2.isf(1e-9, projections) / chi2.ppf(2.0**-40, projections))),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    content = {
        **made(),
        "parameters": PARAMETERS,
        "multiplication_microseconds": 1e6 * multiplication,
        "node_commitments_seconds": commitments,
        "server_check_seconds_a_node": check,
        "commitment_bytes_over_words": POINT * 8 / WORD_BITS,
        "projections": rows,
    }
    print(json.dumps(content, indent=1))
    store(RESULTS, content)


if __name__ == "__main__":
    main()
