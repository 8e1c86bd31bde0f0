"""A node's part in secure aggregation: it adds its share of the noise to its sum, masks it, and helps to unmask.

It refuses an order under other terms, a second sum of a round, and more check-ins of a unit than agreed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import Context

from fedamp import rng
from fedamp.base.arrays import Sums
from fedamp.client.clipping import quantum
from fedamp.client.configuration import task_of
from fedamp.client.participant import Participant
from fedamp.engines.wire import RoundAnswer, RoundOrder, rows
from fedamp.errors import DeploymentError
from fedamp.federation.aggregation import STEPS, Terms
from fedamp.federation.check_in import Attendance
from fedamp.models.model import WHOLE
from fedamp.noise.gaussian import Address, add_gaussian, grid_of
from fedamp.secure.member import Member
from fedamp.secure.protocol import Words

Train = Callable[[RoundOrder], RoundAnswer]


def grid_of_words(clip: float, noise_multiplier: float, terms: Terms) -> float:
    """The number of which each coordinate of a node's noisy sum is a whole multiple."""
    return grid_of(terms.share(noise_multiplier * clip), STEPS) if noise_multiplier else quantum(clip)


def words_of(
    sums: Sums, count: float, multiplier_of: Mapping[str, float], clip_of: Mapping[str, float], terms: Terms, seed: int
) -> Words:
    """A node's sum and its share of the noise, as words modulo 2**bits in the order of ``sums``.

    Each share is N(0, deviation^2 / honest), rounded to the grid after it is added (:func:`add_gaussian`). The sum of
    the shares is the rounding of one Gaussian and independent uniforms, up to a total variation of 2**-280
    (docs/secure-aggregation.md, Lemma 1), so it costs at most what the Gaussian costs.

    Args:
        count: units below the clip minus half of all that trained; the last word where the terms have noise for it.
        multiplier_of, clip_of: noise multiplier and clipping norm of each array.
        seed: secret, of this attempt alone.
    """
    parts = [(array.astype(np.float64).ravel(), multiplier_of[name], clip_of[name]) for name, array in sums.items()]
    if terms.count_noise:
        parts.append((np.array([count]), terms.count_noise, 1.0))
    words = []
    for index, (flat, multiplier, clip) in enumerate(parts):
        if multiplier:
            deviation = terms.share(multiplier * clip)
            add_gaussian(flat, deviation, Address(seed, "share of noise", (index,)), steps=STEPS)
        flat /= grid_of_words(clip, multiplier, terms)
        words.append(flat.astype(np.int64).view(np.uint64).astype(f"u{terms.bits // 8}"))
    return np.concatenate(words)


def sums_of(
    words: Words,
    shapes: Mapping[str, tuple[int, ...]],
    multiplier_of: Mapping[str, float],
    clip_of: Mapping[str, float],
    terms: Terms,
) -> tuple[Sums, float]:
    """The noisy sums and the noisy count (0 without) that words stand for: the inverse of :func:`words_of`."""
    signed = words.view(f"i{terms.bits // 8}").astype(np.float64)
    sums, place = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        grid = grid_of_words(clip_of[name], multiplier_of[name], terms)
        sums[name] = (signed[place : place + size] * grid).reshape(shape)
        place += size
    noise = terms.count_noise
    return sums, float(signed[-1] * grid_of_words(1.0, noise, terms)) if noise else 0.0


def length_of(shapes: Mapping[str, tuple[int, ...]], terms: Terms) -> int:
    """Number of words."""
    return sum(int(np.prod(shape)) for shape in shapes.values()) + bool(terms.count_noise)


def answer(order: RoundOrder, context: Context, hosted: set[int], whose: Iterable[bytes], train: Train) -> bytes:
    """A node's part in one exchange of a round; ``whose``: facts about which records are which unit's.

    DeploymentError: the node refuses it, and why. Other errors may depend on records: the server is not told them.
    """
    asked, task, round_ = order.exchange, task_of(order.task), order.round
    own = Participant.of(context, task.terms)
    terms, exchange = own.agreement.terms, str(asked["exchange"])
    if task.terms != terms or own.agreement.task not in ("", task.digest):
        raise DeploymentError("the server's terms, or its task, are not those of this node's agreement")
    if not 1 <= round_ <= terms.rounds:
        raise DeploymentError(f"round {round_} is none of the {terms.rounds} that were agreed on")
    place = terms.context(round_, order.clips, bytes(asked["attempt"]))
    with own.alone():
        if exchange == "keys":
            if round_ <= own.memory.signed:
                raise DeploymentError(f"this node has signed the survivors of round {own.memory.signed} already")
            if int(asked["last"]) > own.memory.signed:
                raise DeploymentError("this node has forgotten a round that it signed: was its state put back?")
            question = bytes(asked["question"])
            member = Member.enter(terms.settings, place, own.name, own.agreement.digest, question, own.memory.signed)
            reply = member.keys(own.key)
        else:
            member = own.member
            if member.context != place:
                raise DeploymentError("the server has begun another attempt at this round")
            data, parts = bytes(asked["data"]), _cut(bytes(asked["data"]), list(asked["numbers"]))
            if exchange == "shares":
                with _protocol():
                    reply = member.shares(data, own.agreement.keys, own.memory.seen)
            elif exchange == "masked":
                once = sha256(place).hexdigest()
                if own.memory.masked == once:  # also if the file of the attempt was put back
                    raise DeploymentError("this node has sent its masked words already")
                if order.digest != member.question:
                    raise DeploymentError("the order is not the one for which this node has made its keys")
                words = _words(order, own, member, hosted, whose, train)
                own.remember(masked=once)
                with _protocol():
                    reply = member.masked(parts, words)
            elif exchange == "agree":
                survivors = own.signing(round_, member, data)
                with _protocol():
                    reply = member.agree(data, own.key)
                own.remember(signed=round_, survivors=survivors)
            elif exchange == "unmask":
                survivors = own.signing(round_, member, bytes(asked["survivors"]))
                with _protocol():
                    reply = member.unmask(bytes(asked["survivors"]), parts, own.agreement.keys)
                seen = own.memory.seen | dict.fromkeys(member.signers, round_)
                own.remember(signed=round_, survivors=survivors, seen=seen)
            else:
                raise DeploymentError(f"there is no exchange {exchange!r}")
        own.member = member
    return reply


@contextmanager
def _protocol() -> Iterator[None]:
    """What the protocol refuses follows from messages alone, so the server may know it (DeploymentError)."""
    try:
        yield
    except ValueError as error:
        raise DeploymentError(str(error)) from None


def _cut(data: bytes, numbers: Sequence[int]) -> dict[int, bytes]:
    """Parts of equal length, by the number of the member that each is of."""
    length = len(data) // len(numbers) if numbers else 0
    return {number: data[length * place : length * (place + 1)] for place, number in enumerate(numbers)}


def _words(
    order: RoundOrder, own: Participant, member: Member, hosted: set[int], whose: Iterable[bytes], train: Train
) -> Words:
    """What the node adds to the sum of a round, before masks."""
    terms, ids = own.agreement.terms, order.ids
    units = rng.keyed_digest(int(own.memory.schedule, 16), "units", [str(sorted(hosted)).encode(), *whose])
    if own.memory.units not in ("", units):
        raise DeploymentError("other units live on this node, or own its records, than when it joined the run")
    if not own.memory.units:
        own.remember(units=units)
    if order.extracted != WHOLE:
        raise DeploymentError("the order is of a part of the model")
    if len(set(ids)) != len(ids):
        raise DeploymentError("the order names a unit twice")
    if terms.check_in is not None:
        order = _drawn(order, own, hosted)
    else:
        counted = set(map(str, order.counted))
        rounds = {client: tuple(sorted({*own.memory.check_ins.get(client, ()), order.round})) for client in counted}
        if any(len(each) > terms.most_check_ins for each in rounds.values()):
            raise DeploymentError(f"a unit would take part in more than {terms.most_check_ins} rounds")
        own.remember(check_ins=own.memory.check_ins | rounds)
    answer = train(order)
    parts = [0] * len(answer.sums)
    if len(terms.noise_multipliers) == 2:
        shared = own_piece(order.task).shared
        parts = [0 if name in shared else 1 for name in answer.sums]
    if len(order.clips) != len(terms.noise_multipliers):
        raise DeploymentError("the order has clipping norms for other parts than were agreed on")
    multiplier_of = {name: terms.noise_multipliers[part] for name, part in zip(answer.sums, parts, strict=True)}
    clip_of = {name: order.clips[part] for name, part in zip(answer.sums, parts, strict=True)}
    count = answer.below_clip - len(answer.reported) / 2
    content = sha256(repr(count).encode())
    for array in answer.sums.values():
        content.update(np.ascontiguousarray(array).data)
    return words_of(answer.sums, count, multiplier_of, clip_of, terms, member.noise_seed(content.digest()))


def _drawn(order: RoundOrder, own: Participant, hosted: set[int]) -> RoundOrder:
    """What the node's own schedule says of a round. All units train, so that the time it takes tells nothing."""
    terms, seed = own.agreement.terms, int(own.memory.schedule, 16)
    assert terms.check_in is not None
    units = np.array(sorted(hosted))
    here = Attendance(terms.check_in, terms.rounds, len(units), seed).cohort(order.round)
    submodels = task_of(order.task).submodels.draw(units, seed, order.round)
    seeds = rng.client_seeds(seed, "units", order.round, units)
    return replace(order, rows=rows(units, seeds, submodels, np.isin(np.arange(len(units)), here)))


@lru_cache(maxsize=2)
def own_piece(task_json: str) -> Any:
    """A submodel of a task: it tells which arrays are in the shared part."""
    task = task_of(task_json)
    pieces = task.submodels.pieces(task.model, tuple(task.input_shape), task.num_classes, task.split_seed)
    return task.submodels.a_piece(pieces)
