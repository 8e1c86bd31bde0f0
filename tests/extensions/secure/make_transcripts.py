"""Writes the transcripts of secure aggregation: ``python -m tests.extensions.secure.make_transcripts``.

Secrets and words are fixed, so that another implementation of a node can send the same bytes. Sums are plain sums of
words. Hostile transcripts change one message each.
"""

import copy
import json
from pathlib import Path

from fedamp.extensions.secure.member import ProtocolMember
from tests.extensions.secure.federation import Round, settings

FILE = Path(__file__).parents[3] / "fedamp" / "extensions" / "secure" / "vectors" / "transcripts.json"
FORMAT = "fedamp secure transcripts 1"


class KnownRound(Round):
    """A round whose secrets are known."""

    def begin(self):
        self.secrets = {name: bytes([7 + number]) * 32 for number, name in enumerate(self.names)}
        self.told = {}
        enter = ProtocolMember.enter
        known = iter(self.secrets.values())
        ProtocolMember.enter = classmethod(lambda cls, *of: cls(*of, secret=next(known)))
        try:
            return super().begin()
        finally:
            ProtocolMember.enter = enter

    def exchange(self, name_of_it, asked, answer):
        self.told[name_of_it] = super().exchange(name_of_it, asked, answer)
        return self.told[name_of_it]


def transcript(nodes, dropped, colluding, lost=None, seed=0):
    """A round as its server saw it, with what its nodes alone know."""
    found = KnownRound(settings(nodes, dropped, colluding), seed=seed, lost=lost)
    total, plain = found.play()
    assert total.tolist() == plain.tolist()
    hexed = {key: {name: data.hex() for name, data in told.items()} for key, told in found.told.items()}
    return {
        "settings": {"nodes": nodes, "dropped": dropped, "colluding": colluding},
        "context": found.collector.context.hex(),
        "agreement": "agreement",
        "signing_keys": {name: key.public_bytes_raw().hex() for name, key in found.peers.items()},
        "nodes": {
            name: {
                "secret": found.secrets[name].hex(),
                "signing_key": found.signing[name].private_bytes_raw().hex(),
                "words": found.words[name].tolist(),
            }
            for name in found.names
        },
        "words": found.length,
        "keys": hexed["keys"],
        "shares": hexed["shares"],
        "masked": hexed["masked"],
        "survivors": found.survivors.hex(),
        "signatures": hexed["agree"],
        "unmasked": hexed["unmask"],
        "sum": plain.tolist(),
    }


def transcripts():
    """Pairs of a transcript and the message in which something is to be found, or None."""
    whole, one_left = transcript(4, 1, 1), transcript(5, 1, 1, lost={"masked": {"node0002"}}, seed=1)
    yield whole, None
    yield one_left, None

    def changed(base, change, finding):
        other = copy.deepcopy(base)
        change(other)
        return other, finding

    def flip(key, name, place):
        def change(told):
            data = bytearray.fromhex(told[key][name])
            data[place] ^= 1
            told[key][name] = data.hex()

        return change

    yield changed(whole, flip("keys", "node0001", 5), "keys")  # another public key of masks: the digest changes, too
    yield changed(whole, flip("unmasked", "node0000", 70), "shares")
    yield changed(one_left, flip("unmasked", "node0003", 70), "shares")
    yield changed(whole, lambda told: told.update(signatures=dict(list(told["signatures"].items())[:2])), "signatures")
    yield changed(whole, flip("signatures", "node0002", 9), None)  # three others are enough
    yield changed(whole, lambda told: told["sum"].reverse(), "sum")
    yield changed(whole, flip("masked", "node0003", 0), "sum")
    yield changed(whole, lambda told: told["masked"].pop("node0000"), "survivors")


def main():
    FILE.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps({"finding": finding, "transcript": told}) for told, finding in transcripts())
    FILE.write_text(f'{{"format": "{FORMAT}", "transcripts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
