"""A second reader of transcripts of secure aggregation: ``cryptography`` and NumPy, and no code of fedamp.

``python second_reader.py TRANSCRIPTS.json`` reads each round as its server saw it, and says what is wrong with it. All
nodes are neighbours of each other, as among up to 64 of them. docs/research/secure-aggregation.md, "Transcripts", has
the format.
"""

import hashlib
import json
import sys

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME, SHARE, SEALED, DIGEST = 2**521 - 1, 66, 148, 32


def is_signed(public, signature, content):
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature[1 : 1 + signature[0]], content)
    except InvalidSignature:
        return False
    return True


def derived(secret, purpose, digest):
    return HKDF(hashes.SHA256(), 32, salt=digest, info=b"fedamp " + purpose).derive(secret)


def mask_of(key, words):
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * words)), "<u4")


def secret_of(shares):
    """Lagrange's formula at 0 for pairs of a holder's number, from 1, and its share."""
    total = 0
    for x, share in shares:
        weight = 1
        for other, _ in shares:
            if other != x:
                weight = weight * other * pow(other - x, -1, PRIME) % PRIME
        total += weight * int.from_bytes(share, "big")
    return (total % PRIME).to_bytes(SHARE, "big")[-32:]


def complaints(told):
    """What is wrong with a round, from what its server saw."""
    names, settings = sorted(told["keys"]), told["settings"]
    count, context = len(names), bytes.fromhex(told["context"])
    keys = {name: bytes.fromhex(told["keys"][name]) for name in names}
    for name in names:
        content = keys[name][:100]
        signed = b"fedamp keys\0" + told["agreement"].encode() + b"\0" + context + name.encode() + b"\0" + content
        if not is_signed(told["signing_keys"][name], keys[name][100:], signed):
            yield f"keys: {name} has not signed its keys"
    lines = [name.encode() + b"\0" + keys[name] for name in names]
    listed = b"".join(len(line).to_bytes(4, "big") + line for line in lines)
    head = b"fedamp members\0" + len(context).to_bytes(4, "big") + context
    digest = hashlib.sha256(head + listed).digest()
    survivors = [i for i in range(count) if bytes.fromhex(told["survivors"])[i // 8] >> (7 - i % 8) & 1]
    if len(survivors) < settings["nodes"] - settings["dropped"]:
        yield "survivors: they are too few"
    if sorted(told["masked"]) != [names[i] for i in survivors]:
        yield "survivors: they are not the nodes that sent words"
    agreed = b"fedamp survivors\0" + digest + bytes.fromhex(told["survivors"])
    signatures = told["signatures"].items()
    signers = sum(is_signed(told["signing_keys"][name], bytes.fromhex(each), agreed) for name, each in signatures)
    majority = (settings["nodes"] + settings["colluding"]) // 2 + 1
    if signers < majority:
        yield f"signatures: {signers} nodes have signed the survivors, not {majority}"
        return
    # Whose share it is: for each dealer the sealed shares for the others, then digests in the same order, itself last.
    known, total = [[] for _ in names], np.zeros(told["words"], np.uint32)
    for holder in survivors:
        for place, dealer in enumerate([*(i for i in range(count) if i != holder), holder]):
            share = bytes.fromhex(told["unmasked"][names[holder]])[SHARE * place : SHARE * (place + 1)]
            dealt = bytes.fromhex(told["shares"][names[dealer]])[SEALED * (count - 1) :]
            at = count - 1 if holder == dealer else holder - (holder > dealer)
            start = DIGEST * (2 * at + (dealer in survivors))
            if hashlib.sha256(b"fedamp share\0" + share).digest() == dealt[start : start + DIGEST]:
                known[dealer].append((holder + 1, share))
            else:
                yield f"shares: {names[holder]} gives another share of {names[dealer]} than it got"
    for name in told["masked"]:
        total += np.frombuffer(bytes.fromhex(told["masked"][name]), "<u4")
    for i, name in enumerate(names):
        if len(known[i]) < majority:
            yield f"shares: too few of {name}"
            return
        secret = secret_of(known[i][:majority])
        if i in survivors:
            if hashlib.sha256(b"fedamp seed\0" + secret).digest() != keys[name][64:96]:
                yield f"shares: those of {name} are not of its seed"
            total -= mask_of(derived(secret, b"own mask", digest), told["words"])
            continue
        private = X25519PrivateKey.from_private_bytes(secret)
        if private.public_key().public_bytes_raw() != keys[name][:32]:
            yield f"shares: those of {name} are not of its key"
        for other in survivors:
            common = private.exchange(X25519PublicKey.from_public_bytes(keys[names[other]][:32]))
            purpose = b"pair mask " + min(i, other).to_bytes(4, "big") + max(i, other).to_bytes(4, "big")
            mask = mask_of(derived(common, purpose, digest), told["words"])
            total = total - mask if other < i else total + mask
    if total.tolist() != told["sum"]:
        yield "sum: it is another one"


def main(names):
    wrong = 0
    for name in names:
        with open(name) as file:
            cases = json.load(file)["transcripts"]
        for number, case in enumerate(cases):
            found = list(complaints(case["transcript"]))
            first = found[0].split(":")[0] if found else None  # others may follow from it
            wrong += first != case["finding"]
            print(name, number, *found, f"expected: {case['finding'] or 'nothing'}", sep="\n  ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
