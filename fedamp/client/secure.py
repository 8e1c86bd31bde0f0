"""A node's part in secure aggregation: it adds its share of the noise to its sum, masks it, and helps to unmask.

A node believes its own files only: the agreement (:class:`Agreement`), its signing key, and a memory of what it took
part in. It refuses an order under other terms, a second sum of a round, and more check-ins of a unit than agreed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import ConfigRecord, Context, Message, RecordDict
from pydantic import Field

from fedamp import rng
from fedamp.base.arrays import Sums
from fedamp.base.files import FileRecord, write_secret
from fedamp.base.record import Record
from fedamp.client import messages
from fedamp.client.clipping import quantum
from fedamp.client.messages import Order
from fedamp.client.task import ClientTask, TrainInstruction, TrainReport
from fedamp.engines import flower
from fedamp.errors import DeploymentError, FedampError, one_line
from fedamp.federation.aggregation import STEPS, Terms
from fedamp.federation.check_in import Attendance
from fedamp.models.section import WHOLE
from fedamp.noise.gaussian import Address, add_gaussian, grid_of
from fedamp.secure.member import Member
from fedamp.secure.protocol import PublicKey, SigningKey, Words

Train = Callable[[Order], tuple[Sums, TrainReport]]


class Agreement(FileRecord):
    """``agreement.json``: what the nodes of one run have agreed on, the same file at each of them.

    Attributes:
        run: a name that no other agreement has; a node takes part in each round of it once.
        peers: the public key of each node, as OpenSSH writes it, by the name under which it is registered.
        terms: of the run.
    """

    kind: ClassVar[str] = "agreement"
    format: str = "fedamp agreement 1"
    run: str
    peers: dict[str, str]
    terms: Terms

    @cached_property
    def digest(self) -> str:
        return sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def keys(self) -> dict[str, PublicKey]:
        """The peers' keys; DeploymentError: one cannot be read."""
        found: dict[str, PublicKey] = {}
        for name, text in self.peers.items():
            try:
                key = load_ssh_public_key(text.encode())
            except ValueError as error:
                raise DeploymentError(f"agreement: the key of {name} cannot be read ({error})") from None
            if not isinstance(key, PublicKey):
                raise DeploymentError(f"agreement: the key of {name} is of another kind; expected: Ed25519 or ECDSA")
            found[name] = key
        return found


class Memory(Record):
    """What a node must not forget during a run: a node without it stays out.

    Attributes:
        agreement: digest of the one that it belongs to.
        schedule: secret seed of the check-ins and submodels of the node's units, in hexadecimal digits.
        unmasked: the last round that the node helped to unmask.
        check_ins: the rounds of each unit, where the server draws them.
    """

    agreement: str
    schedule: str
    unmasked: int = 0
    check_ins: dict[str, tuple[int, ...]] = Field(default_factory=dict)


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


def simulated_key(node: int) -> Ed25519PrivateKey:
    """The signing key of a node that is simulated, where all nodes are one machine's and nothing is secret."""
    return Ed25519PrivateKey.from_private_bytes(rng.stream(node, "simulated node").words(4).tobytes())


@lru_cache(maxsize=2)
def simulated_agreement(terms: Terms) -> Agreement:
    """Of the nodes of a simulation, whose names are their numbers."""
    keys = {str(node): written(simulated_key(node).public_key()) for node in range(terms.nodes)}
    return Agreement(run="a simulation", peers=keys, terms=terms)


def written(key: PublicKey) -> str:
    """A public key as OpenSSH writes it."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@dataclass
class Participant:
    """A node with its agreement, its signing key, and its memory, which outlasts the process in ``folder``."""

    agreement: Agreement
    key: SigningKey
    memory: Memory
    folder: Path | None
    context: Context

    @classmethod
    def of(cls, context: Context, task: ClientTask) -> "Participant":
        """The participant that a node's configuration names; DeploymentError: it names none, or cannot be read."""
        if not flower.in_supernode():
            return cls._simulated(context, task)
        files = {key: messages.text(context, key) for key in ("agreement", "key", "state")}
        if missing := [key for key, value in files.items() if not value]:
            raise DeploymentError(
                f"this node's configuration lacks {', '.join(missing)}; expected: "
                'agreement="FILE" key="FILE" state="FOLDER", as docs/secure-aggregation.md says'
            )
        return cls.read(Path(files["agreement"]), Path(files["key"]), Path(files["state"]), context)

    @classmethod
    def read(cls, agreement: Path, key: Path, folder: Path, context: Context) -> "Participant":
        """From the files of a node; DeploymentError: one of them is missing, or of another node or run."""
        try:
            found = Agreement.read(agreement)
            private = load_ssh_private_key(key.read_bytes(), None)
        except (OSError, ValueError, FedampError) as error:
            raise DeploymentError(f"secure aggregation: {one_line(error)}") from None
        if not isinstance(private, SigningKey):
            raise DeploymentError(f"{key}: a key of another kind; expected: Ed25519 or ECDSA")
        file = folder / f"{found.digest[:16]}.json"
        try:
            memory = Memory.from_json(file.read_bytes())
        except (OSError, ValueError):
            raise DeploymentError(
                f"{file}: this node has no memory of the run, so it stays out; before a run: fedamp join {agreement}"
            ) from None
        participant = cls(found, private, memory, file, context)
        participant.name  # noqa: B018 - raises
        return participant

    @classmethod
    def _simulated(cls, context: Context, task: ClientTask) -> "Participant":
        if task.terms is None:
            raise DeploymentError("the task has no terms of secure aggregation")
        agreement = simulated_agreement(task.terms)
        found = context.state.config_records.get("memory")
        text = str(found["text"]) if found else new_memory(agreement).to_json()
        memory = Memory.from_json(text)
        return cls(agreement, simulated_key(int(context.node_config["partition-id"])), memory, None, context)

    @cached_property
    def name(self) -> str:
        """Its name in the agreement: that of its key; DeploymentError: its key is not in it."""
        own = written(self.key.public_key())
        for name, text in self.agreement.peers.items():
            if text.split()[:2] == own.split()[:2]:
                return name
        raise DeploymentError("this node's key is not in its agreement")

    def remember(self, **changes: Any) -> None:
        """Change the memory, on the disk before anything follows from it."""
        self.memory = self.memory.model_copy(update=changes)
        if self.folder is not None:
            write_secret(self.folder, self.memory.to_json())
        else:
            self.context.state["memory"] = ConfigRecord({"text": self.memory.to_json()})

    @property
    def member(self) -> Member:
        """In this attempt at a round; DeploymentError: it has sent no keys."""
        found = self.context.state.config_records.get("secure")
        if found is None:
            raise DeploymentError("this node has sent no keys for this round")
        return Member.of(found["state"])  # type: ignore[arg-type]

    @member.setter
    def member(self, member: Member) -> None:
        self.context.state["secure"] = ConfigRecord({"state": member.state})


def new_memory(agreement: Agreement) -> Memory:
    """Of a node that has taken part in nothing, with a schedule that nobody knows."""
    return Memory(agreement=agreement.digest, schedule=f"{rng.seed_from_system():064x}")


def join(agreement: Path, folder: Path) -> Path:
    """Make the memory of a node for a run, once; returns its file.

    RunFolderError: the agreement is damaged. DeploymentError: there is one already.
    """
    found = Agreement.read(agreement)
    file = folder / f"{found.digest[:16]}.json"
    if file.exists():
        raise DeploymentError(f"{file}: this node has joined that run already; a second schedule would cost it again")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_secret(file, new_memory(found).to_json())
    return file


def answer(message: Message, context: Context, hosted: set[int], train: Train) -> Message:
    """A node's part in one exchange of a round.

    DeploymentError, ValueError: the node refuses it, and why.
    """
    asked = messages.config_of(message, "secure")
    task, round_, exchange = messages.task_of(str(asked["task"])), int(asked["round"]), str(asked["exchange"])
    own = Participant.of(context, task)
    terms = own.agreement.terms
    if task.terms != terms or (task.unit, task.submodels) != (terms.unit, terms.submodels):
        raise DeploymentError("the server's terms are not those of this node's agreement")
    if not 1 <= round_ <= terms.rounds:
        raise DeploymentError(f"round {round_} is none of the {terms.rounds} that were agreed on")
    place = f"round {round_} ".encode() + bytes(asked["attempt"])
    if exchange == "keys":
        if round_ <= own.memory.unmasked:
            raise DeploymentError(f"this node has helped to unmask round {own.memory.unmasked} already")
        member = Member.enter(terms.settings, place, own.name)
        reply = member.keys(own.key)
    else:
        member = own.member
        if member.context != place:
            raise DeploymentError("the server has begun another attempt at this round")
        data, numbers = bytes(asked["data"]), list(asked["numbers"])
        parts = _cut(data, numbers)
        peers = own.agreement.keys
        if exchange == "shares":
            reply = member.shares(data, peers)
        elif exchange == "masked":
            words = _words(Order.of(message), own, round_, hosted, train)
            reply = member.masked(parts, words)
        elif exchange == "agree":
            reply = member.agree(data, own.key)
        elif exchange == "unmask":
            survivors = bytes(asked["survivors"])
            if round_ <= own.memory.unmasked and member.answered != survivors:
                raise DeploymentError(f"this node has helped to unmask round {own.memory.unmasked} already")
            reply = member.unmask(survivors, parts, peers)
            own.remember(unmasked=round_)
        else:
            raise DeploymentError(f"there is no exchange {exchange!r}")
    own.member = member
    return Message(RecordDict({"answer": ConfigRecord({"data": reply})}), reply_to=message)


def _cut(data: bytes, numbers: Sequence[int]) -> dict[int, bytes]:
    """Parts of equal length, by the number of the member that each is of."""
    length = len(data) // len(numbers) if numbers else 0
    return {number: data[length * place : length * (place + 1)] for place, number in enumerate(numbers)}


def _words(order: Order, own: Participant, round_: int, hosted: set[int], train: Train) -> Words:
    """What the node adds to the sum of a round, before masks."""
    terms, instruction = own.agreement.terms, order.instruction
    if instruction.round != round_ or instruction.extracted != WHOLE:
        raise DeploymentError("the order is of another round, or of a part of the model")
    if terms.check_in is not None:
        order = replace(order, instruction=_drawn(order.task, own, instruction, hosted))
    else:
        counted = {str(client) for client in set(instruction.clients) - instruction.dummies}
        rounds = {client: tuple(sorted({*own.memory.check_ins.get(client, ()), round_})) for client in counted}
        if any(len(each) > terms.most_check_ins for each in rounds.values()):
            raise DeploymentError(f"a unit would take part in more than {terms.most_check_ins} rounds")
        own.remember(check_ins=own.memory.check_ins | rounds)
    sums, report = train(order)
    parts = [0] * len(sums)
    if len(terms.noise_multipliers) == 2:
        shared = own_piece(order.task_json).shared
        parts = [0 if name in shared else 1 for name in sums]
    if len(instruction.clips) != len(terms.noise_multipliers):
        raise DeploymentError("the order has clipping norms for other parts than were agreed on")
    multiplier_of = {name: terms.noise_multipliers[part] for name, part in zip(sums, parts, strict=True)}
    clip_of = {name: instruction.clips[part] for name, part in zip(sums, parts, strict=True)}
    count = report.below_clip - len(report.reported) / 2
    return words_of(sums, count, multiplier_of, clip_of, terms, rng.seed_from_system())


def _drawn(task: ClientTask, own: Participant, told: TrainInstruction, hosted: set[int]) -> TrainInstruction:
    """What the node's own schedule says of a round. All units train, so that the time it takes tells nothing."""
    terms, seed = own.agreement.terms, int(own.memory.schedule, 16)
    assert terms.check_in is not None
    units = np.array(sorted(hosted))
    here = Attendance(terms.check_in, terms.rounds, len(units), seed).cohort(told.round)
    submodels = task.submodels.draw(units, seed, told.round)
    seeds = rng.client_seeds(seed, "units", told.round, units)
    counted = np.isin(np.arange(len(units)), here)
    return replace(
        told,
        clients=units.tolist(),
        seeds=[bytes(each) for each in seeds.tolist()],
        submodels=submodels.tolist(),
        counted=counted.tolist(),
    )


@lru_cache(maxsize=2)
def own_piece(task_json: str) -> Any:
    """A submodel of a task: it tells which arrays are in the shared part."""
    task = messages.task_of(task_json)
    pieces = task.submodels.pieces(task.model, tuple(task.input_shape), task.num_classes, task.split_seed)
    return task.submodels.a_piece(pieces)
