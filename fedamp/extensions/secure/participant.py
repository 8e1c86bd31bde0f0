"""Take part in secure aggregation as a node: add a share of the noise to the node's sum, mask it, and help to unmask.

A node believes its own files, and nothing that the server says. The agreement has the terms and the public keys of the
nodes of a run; the memory has what the node took part in. It refuses an order under other terms, a second sum of a
round, and more check-ins of a unit than agreed.

:func:`answer` is the place to begin; :mod:`fedamp.client.app` calls it through the seam ``exchanges``. The keys and
masks are :mod:`fedamp.extensions.secure.member`'s.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import Context
from pydantic import Field

from fedamp import rng
from fedamp.base.arrays import Sums
from fedamp.base.files import FileRecord, lock, write_secret
from fedamp.base.reading import TYPED, read_regular
from fedamp.base.record import Label, NodeName, Record
from fedamp.client.clipping import quantum
from fedamp.client.configuration import task_of
from fedamp.client.exchange import TrainUnits
from fedamp.engines.wire import SIDE_SUM, RoundOrder, rows
from fedamp.errors import DeploymentError, FedampError, one_line
from fedamp.extensions.secure.member import ProtocolMember
from fedamp.extensions.secure.protocol import PublicKey, SigningKey, WordArray
from fedamp.extensions.secure.terms import STEPS, AgreedTerms, terms_of
from fedamp.federation.check_in import Attendance
from fedamp.models.model import WHOLE
from fedamp.noise import Address, add_gaussian, grid_of


class Agreement(FileRecord):
    """The content of ``agreement.json``: what the nodes of one run have agreed on, the same file at each of them.

    Attributes:
        run: a name that no other agreement has; a node takes part in each round of it once.
        peers: the public key of each node, as OpenSSH writes it, by the name under which it is registered.
        task: digest of what the nodes compute (:attr:`fedamp.client.task.ClientTask.digest`).
        terms: of the run.
    """

    kind: ClassVar[str] = "agreement"
    format: Literal["fedamp agreement 1"] = "fedamp agreement 1"
    run: Label
    peers: dict[NodeName, str]
    task: str
    terms: AgreedTerms

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the agreement, in hex; it enters all signed keys."""
        return sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def keys(self) -> dict[str, PublicKey]:
        """Public keys of the peers, by name.

        Raises:
            DeploymentError: one cannot be read.
        """
        found: dict[str, PublicKey] = {}
        for name, text in self.peers.items():
            try:
                key = load_ssh_public_key(text.encode())
            except (ValueError, UnsupportedAlgorithm) as error:
                raise DeploymentError(f"agreement: the key of {name} cannot be read ({error})") from None
            if not isinstance(key, PublicKey):
                raise DeploymentError(f"agreement: the key of {name} is of another kind; expected: Ed25519 or ECDSA")
            if written(key) != text:
                raise DeploymentError(f"agreement: the key of {name} has something beside it; expected: the key alone")
            found[name] = key
        return found

    def check(self, without_noise: bool = False) -> Self:
        """Refuse an agreement that no node should agree to, and return it otherwise.

        Two names with one key would be one node that counts twice. Without a task the server could change the learning
        rate, and so what all nodes compute.

        Args:
            without_noise: whether the node's owner takes part in sums without noise.

        Raises:
            DeploymentError: one line that says why.
        """
        terms, form = self.terms, PublicFormat.SubjectPublicKeyInfo
        raw = [key.public_bytes(Encoding.DER, form) for key in self.keys.values()]
        if len({name.casefold() for name in self.peers}) < len(self.peers) or len(set(raw)) < len(raw):
            raise DeploymentError("agreement: two nodes have one key, or one name; expected: each its own")
        if len(raw) != terms.nodes:
            raise DeploymentError(f"agreement: it names {len(raw)} nodes, and its terms are for {terms.nodes}")
        if not re.fullmatch("[0-9a-f]{64}", self.task):
            raise DeploymentError("agreement: it has no task, so the server could change it; expected: its digest")
        if not terms.noise_multipliers or terms.most_check_ins > terms.rounds:
            raise DeploymentError("agreement: it has no noise multiplier, or more check-ins of a unit than rounds")
        if not all(terms.noise_multipliers) and not without_noise:
            raise DeploymentError(
                "agreement: its noise multiplier is 0, so no unit is protected from anybody who sees the sums; who "
                "wants that: fedamp join --without-noise"
            )
        try:
            terms.settings.check()
            if terms.check_in is not None:
                terms.check_in.check_rounds(terms.rounds)
        except ValueError as error:
            raise DeploymentError(f"agreement: {error}") from None
        return self


class NodeMemory(Record):
    """State that a node must keep during a run; without it the node cannot take part.

    Attributes:
        agreement: digest of the one that it belongs to.
        without_noise: whether the node's owner takes part in sums without noise.
        schedule: secret seed of the check-ins and submodels of the node's units, in hexadecimal digits.
        units: digest, under the schedule's seed, of the units that live here and of which records are whose. With
            others a unit would have another schedule, and one person could have that of two.
        signed: the last round whose survivors the node has signed. It takes part in no further sum of that round.
        survivors: digest of the list and the survivors that it has signed in that round.
        masked: digest of the last attempt for which it has sent its masked words.
        seen: the last round that it has seen each other node sign.
        check_ins: the rounds of each unit, where the server draws them.
    """

    agreement: str
    without_noise: bool = False
    schedule: str
    units: str = ""
    signed: int = 0
    survivors: str = ""
    masked: str = ""
    seen: dict[str, int] = Field(default_factory=dict)
    check_ins: dict[str, tuple[int, ...]] = Field(default_factory=dict)


def written(key: PublicKey) -> str:
    """Write a public key as OpenSSH does."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@dataclass
class Participant:
    """A node with its agreement, its signing key, and its memory.

    Attributes:
        agreement: of the run.
        key: private, Ed25519 or ECDSA.
        memory: as it is on the disk.
        file: of the memory.
    """

    agreement: Agreement
    key: SigningKey
    memory: NodeMemory
    file: Path

    @classmethod
    def of(cls, context: Context) -> "Participant":
        """Read the participant that a node's configuration names.

        Raises:
            DeploymentError: the configuration lacks a file, or one cannot be read.
        """
        files = {key: str(context.node_config.get(key, "")) for key in ("agreement", "key", "state")}
        if missing := [key for key, value in files.items() if not value]:
            raise DeploymentError(
                f"this node's configuration lacks {', '.join(missing)}; expected: "
                'agreement="FILE" key="FILE" state="FOLDER", as docs/secure-aggregation.md says'
            )
        return cls.read(Path(files["agreement"]), Path(files["key"]), Path(files["state"]))

    @classmethod
    def read(cls, agreement: Path, key: Path, folder: Path) -> "Participant":
        """Read a participant from the files of a node.

        Args:
            agreement: ``agreement.json``.
            key: the node's private key, as OpenSSH writes it.
            folder: of the memory.

        Raises:
            DeploymentError: a file is missing, or of another node or run.
        """
        try:
            found = Agreement.read(agreement)
            private = load_ssh_private_key(read_regular(key, TYPED), None)
        except (OSError, ValueError, FedampError) as error:
            raise DeploymentError(f"secure aggregation: {one_line(error)}") from None
        if not isinstance(private, SigningKey):
            raise DeploymentError(f"{key}: a key of another kind; expected: Ed25519 or ECDSA")
        file = folder / f"{found.digest[:16]}.json"
        try:
            memory = NodeMemory.from_json(read_regular(file))
        except (OSError, ValueError):
            raise DeploymentError(f"{file}: no state for this run; run fedamp join {agreement} first") from None
        if memory.agreement != found.digest:
            raise DeploymentError(f"{file}: the memory of another agreement than {agreement}")
        participant = cls(found.check(memory.without_noise), private, memory, file)
        participant.name  # noqa: B018 - raises
        return participant

    @cached_property
    def name(self) -> str:
        """Name of the node in the agreement: that of its key.

        Raises:
            DeploymentError: its key is not in it.
        """
        own = written(self.key.public_key())
        for name, text in self.agreement.peers.items():
            if text == own:
                return name
        raise DeploymentError("this node's key is not in its agreement")

    def remember(self, **changes: Any) -> None:
        """Change the memory, on the disk before anything follows from it."""
        self.memory = self.memory.model_copy(update=changes)
        write_secret(self.file, self.memory.to_json())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Handle one message at a time, each from the state that the one before has left.

        Flower's node starts a process for each message, with a copy of its context. Without the lock a server could
        send two messages at once, and each process would sign other survivors.
        """
        with lock(self.file.with_suffix(".lock")):
            self.memory = NodeMemory.from_json(read_regular(self.file))
            yield

    def signing(self, round_: int, member: ProtocolMember, survivors: bytes) -> str:
        """Compute the digest of the survivors of a round, which the node may sign.

        The file of an attempt may be put back, to before it was signed; the memory still knows.

        Raises:
            DeploymentError: other survivors were signed in this round, or a later round was signed.
        """
        found = sha256(member.members.digest + survivors).hexdigest()
        if round_ < self.memory.signed or (round_ == self.memory.signed and found != self.memory.survivors):
            raise DeploymentError("this node has signed other survivors of this round")
        return found

    @property
    def member(self) -> ProtocolMember:
        """State of this attempt at a round, in a file beside the memory.

        Raises:
            DeploymentError: the node has sent no keys.
        """
        try:
            return ProtocolMember.of(read_regular(self.file.with_suffix(".round")))
        except FileNotFoundError:
            raise DeploymentError("this node has sent no keys for this round") from None

    @member.setter
    def member(self, member: ProtocolMember) -> None:
        write_secret(self.file.with_suffix(".round"), member.state.decode())


def new_memory(agreement: Agreement) -> NodeMemory:
    """Make the memory of a node that has taken part in nothing, with a schedule that nobody knows."""
    return NodeMemory(agreement=agreement.digest, schedule=f"{rng.seed_from_system():064x}")


def join(agreement: Path, folder: Path, without_noise: bool = False) -> Path:
    """Make the memory of a node for a run, once.

    Args:
        agreement: ``agreement.json``.
        folder: where it is kept, for this user alone.
        without_noise: whether the node's owner takes part in sums without noise.

    Returns:
        The file.

    Raises:
        RunFolderError: the agreement is damaged.
        DeploymentError: no node should agree to it, or there is a memory already.
    """
    found = Agreement.read(agreement).check(without_noise)
    file = folder / f"{found.digest[:16]}.json"
    if file.exists():
        raise DeploymentError(f"{file}: this node has joined that run already; a second schedule would cost it again")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_secret(file, new_memory(found).model_copy(update={"without_noise": without_noise}).to_json())
    return file


def answer(order: RoundOrder, context: Context, hosted: set[int], whose: Iterable[bytes], train: TrainUnits) -> bytes:
    """Answer one exchange of a round: keys, shares, masked, agree or unmask.

    Args:
        order: with the exchange, and what the server tells in it.
        context: of the node.
        hosted: ids of the units that live on the node.
        whose: facts about which records are which unit's.
        train: trains the units of an order, and returns the sum of their clipped updates.

    Returns:
        The node's message of the protocol.

    Raises:
        DeploymentError: the node refuses it, and why. Other errors may depend on records: the server is not told them.
    """
    asked, task, round_ = order.exchange, task_of(order.task), order.round
    own = Participant.of(context)
    terms, exchange = own.agreement.terms, str(asked["exchange"])
    if terms_of(task) != terms or own.agreement.task != task.digest:
        raise DeploymentError("the server's terms, or its task, are not those of this node's agreement")
    asked_once = task.side_sum is not None and task.side_sum.at_end
    if terms.evaluated_at_end != asked_once or (terms.evaluation_noise > 0) != (task.side_sum is not None):
        raise DeploymentError("the task has a side sum in other rounds, or with other noise, than the terms say")
    if not 1 <= round_ <= terms.last_round:
        raise DeploymentError(f"round {round_} is none of the {terms.rounds} that were agreed on")
    place = terms.context(round_, order.clips, bytes(asked["attempt"]))
    with own.alone():
        if exchange == "keys":
            if int(asked["last"]) > own.memory.signed:
                raise DeploymentError("this node has no record of a round that it signed; was an older state restored?")
            question = bytes(asked["question"])
            member = ProtocolMember.enter(
                terms.settings, place, own.name, own.agreement.digest, question, own.memory.signed
            )
            reply = member.keys(own.key)
            if round_ > own.memory.signed:  # else the keys only prove which round was signed: their secrets are dropped
                own.member = member
            return reply
        member, data = own.member, bytes(asked["data"])
        if member.context != place:
            raise DeploymentError("the server has begun another attempt at this round")
        if exchange == "masked":
            once = sha256(place).hexdigest()
            if own.memory.masked == once:  # also if the file of the attempt was put back
                raise DeploymentError("this node has sent its masked words already")
            if order.digest != member.question:
                raise DeploymentError("the order is not the one for which this node has made its keys")
            words = _words_to_add(order, own, member, hosted, whose, train)
            own.remember(masked=once)
        survivors = bytes(asked["survivors"]) if exchange == "unmask" else data
        signed = own.signing(round_, member, survivors) if exchange in ("agree", "unmask") else ""
        try:
            parts = _cut_shares(data, list(asked["numbers"]))
            if exchange == "shares":
                reply = member.shares(data, own.agreement.keys, own.memory.seen)
            elif exchange == "masked":
                reply = member.masked(parts, words)
            elif exchange == "agree":
                reply = member.agree(data, own.key)
            elif exchange == "unmask":
                reply = member.unmask(survivors, parts, own.agreement.keys)
            else:
                raise DeploymentError(f"there is no exchange {exchange!r}")
        except ValueError as error:  # what the protocol refuses follows from messages alone: the server may know it
            raise DeploymentError(str(error)) from None
        if signed:
            seen = own.memory.seen | dict.fromkeys(member.signers if exchange == "unmask" else (), round_)
            own.remember(signed=round_, survivors=signed, seen=seen)
        own.member = member
    return reply


def _cut_shares(data: bytes, numbers: Sequence[int]) -> dict[int, bytes]:
    """Cut data into parts of equal length, by the number of the member that each is of."""
    length = len(data) // len(numbers) if numbers else 0
    return {number: data[length * place : length * (place + 1)] for place, number in enumerate(numbers)}


def _words_to_add(
    order: RoundOrder,
    own: Participant,
    member: ProtocolMember,
    hosted: set[int],
    whose: Iterable[bytes],
    train: TrainUnits,
) -> WordArray:
    """Compute what the node adds to the sum of a round, before masks: the units' sum with the node's share of noise.

    Raises:
        DeploymentError: the order does not fit the terms, other units live here than before, or a unit would check in
            too often.
    """
    terms, ids, side = own.agreement.terms, order.ids, task_of(order.task).side_sum
    units = rng.keyed_digest(int(own.memory.schedule, 16), "units", [str(sorted(hosted)).encode(), *whose])
    if own.memory.units not in ("", units):
        raise DeploymentError("this node's units or record owners changed since it joined the run")
    if not own.memory.units:
        own.remember(units=units)
    if order.extracted != WHOLE:
        raise DeploymentError("the order is of a part of the model")
    if len(set(ids)) != len(ids):
        raise DeploymentError("the order names a unit twice")
    has_side_sum = side is not None and (side.is_in(order.round) or not order.trains)
    if order.trains != (order.round <= terms.rounds) or bool(order.cells) != has_side_sum:
        raise DeploymentError("the order trains, or asks for a side sum, in another round than was agreed on")
    if terms.check_in is not None and order.trains:
        order = _scheduled_order(order, own, hosted)
    elif order.trains:
        counted = set(map(str, order.counted))
        rounds = {client: tuple(sorted({*own.memory.check_ins.get(client, ()), order.round})) for client in counted}
        if any(len(each) > terms.most_check_ins for each in rounds.values()):
            raise DeploymentError(f"a unit would take part in more than {terms.most_check_ins} rounds")
        own.remember(check_ins=own.memory.check_ins | rounds)
    answer = train(order)
    if order.trains and len(order.clips) != len(terms.noise_multipliers):
        raise DeploymentError("the order has clipping norms for other parts than were agreed on")
    shared = own_piece(order.task).shared if len(terms.noise_multipliers) == 2 else answer.sums
    part_of = {name: int(name not in shared) for name in answer.sums if name != SIDE_SUM}
    multiplier_of = {name: terms.noise_multipliers[part] for name, part in part_of.items()}
    clip_of = {name: order.clips[part] for name, part in part_of.items()}
    if order.cells:
        multiplier_of[SIDE_SUM], clip_of[SIDE_SUM] = terms.evaluation_noise, 1.0
    count = answer.below_clip - len(answer.reported) / 2
    content = sha256(repr(count).encode())
    for array in answer.sums.values():
        content.update(np.ascontiguousarray(array).data)
    return words_of(answer.sums, count, multiplier_of, clip_of, terms, member.noise_seed(content.digest()))


def _scheduled_order(order: RoundOrder, own: Participant, hosted: set[int]) -> RoundOrder:
    """Replace the units of an order by those that the node's own schedule draws.

    All units train, and the others count as dummies, so that the time it takes tells nothing. But units that the server
    names have left: they do nothing, and the draws of the others stay the same (docs/research/leaving.md).
    """
    terms, seed = own.agreement.terms, int(own.memory.schedule, 16)
    assert terms.check_in is not None
    units = np.array(sorted(hosted))
    here = Attendance(terms.check_in, terms.rounds, len(units), seed).cohort_of(order.round)
    submodels = task_of(order.task).submodels.draw(units, seed, order.round)
    seeds = rng.client_seeds(seed, "units", order.round, units)
    drawn = rows(units, seeds, submodels, np.isin(np.arange(len(units)), here))
    return replace(order, rows=drawn[~np.isin(units, order.ids)])


@lru_cache(maxsize=2)
def own_piece(task_json: str) -> Any:
    """Return a submodel of a task, which tells which arrays are in the shared part."""
    task = task_of(task_json)
    pieces = task.submodels.pieces(task.model, tuple(task.input_shape), task.num_classes, task.split_seed)
    return task.submodels.a_piece(pieces)


def grid_of_words(clip: float, noise_multiplier: float, terms: AgreedTerms) -> float:
    """Return the number of which each coordinate of a node's noisy sum is a whole multiple.

    Args:
        clip: clipping norm of the part.
        noise_multiplier: of the part; 0: the clip's own quantum.
        terms: with the number of honest nodes, which decides a share's deviation.
    """
    return grid_of(terms.share(noise_multiplier * clip), STEPS) if noise_multiplier else quantum(clip)


def words_of(
    sums: Sums,
    count: float,
    multiplier_of: Mapping[str, float],
    clip_of: Mapping[str, float],
    terms: AgreedTerms,
    seed: int,
) -> WordArray:
    """Add a node's share of the noise to its sum, and write it as words modulo 2**bits, in the order of ``sums``.

    Each share is N(0, deviation^2 / honest), rounded to the grid after it is added (:func:`add_gaussian`). The sum of
    the shares is the rounding of one Gaussian and independent uniforms, up to a total variation of 2**-280
    (docs/research/secure-aggregation.md, Lemma 1). So it costs at most what the Gaussian costs.

    Args:
        sums: of clipped updates, float64 by name.
        count: units below the clip minus half of all that trained; the last word where :func:`counts` says so.
        multiplier_of, clip_of: noise multiplier and clipping norm of each array.
        terms: of the run.
        seed: secret, of this attempt alone.
    """
    parts = [(array.astype(np.float64).ravel(), multiplier_of[name], clip_of[name]) for name, array in sums.items()]
    if counts(sums, terms):
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
    words: WordArray,
    shapes: Mapping[str, tuple[int, ...]],
    multiplier_of: Mapping[str, float],
    clip_of: Mapping[str, float],
    terms: AgreedTerms,
) -> tuple[Sums, float]:
    """Turn words into the noisy sums and the noisy count (0 without): the inverse of :func:`words_of`.

    Args:
        words: sum of all survivors' words, without masks.
        shapes: of the arrays, by name.
        multiplier_of, clip_of, terms: as for :func:`words_of`.
    """
    signed = words.view(f"i{terms.bits // 8}").astype(np.float64)
    sums, place = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        grid = grid_of_words(clip_of[name], multiplier_of[name], terms)
        sums[name] = (signed[place : place + size] * grid).reshape(shape)
        place += size
    count = float(signed[-1] * grid_of_words(1.0, terms.count_noise, terms)) if counts(shapes, terms) else 0.0
    return sums, count


def length_of(shapes: Mapping[str, tuple[int, ...]], terms: AgreedTerms) -> int:
    """Return the number of words of a sum."""
    return sum(int(np.prod(shape)) for shape in shapes.values()) + counts(shapes, terms)


def counts(names: Iterable[str], terms: AgreedTerms) -> bool:
    """Say whether a word counts the short updates: where the terms have noise for it, and units train."""
    return bool(terms.count_noise) and any(name != SIDE_SUM for name in names)
