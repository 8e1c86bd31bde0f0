"""Define the order of the server to a node in a round, and the node's answer, each with the layout of its bytes.

A simulated message holds the head as bytes, and the arrays as they are. A deployment sends one sealed array of bytes.
Flower keeps each part of a message under the hash of its content, and tells every registered node whether it has it. So
sealed bytes are a nonce that nobody can guess, and the content under a keystream that follows from it. No two parts are
equal. Anyone with the whole message can decrypt it; on its way, TLS protects it.

The size of an order follows from its model and from the number of its rows. The order decides each byte of the answer:
numbers of fixed size, a bit for each row, a short text, the sums. An answer has no names and no lengths, so it cannot
claim what was not asked for, nor take more memory than its own size.

The server writes orders and reads answers (:mod:`fedamp.strategies`); :mod:`fedamp.client.app` does the reverse.
Nothing here adds noise: an answer holds exact sums of clipped updates, and must stay on the server.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base.arrays import Arrays, Sums
from fedamp.engines import flower
from fedamp.errors import DeploymentError
from fedamp.models.model import WHOLE

UNIT = np.dtype([("id", "<i8"), ("seed", f"V{rng.SEED_BYTES}"), ("submodel", "<i4"), ("counted", "?"), ("zeros", "V3")])
"""A row of an order: a unit's id (-1: no unit), its secret seed, its submodel (-1: the whole model), and whether it
counts. Dummies do not: they train as the others do, so that nobody sees from outside who checks in.
"""
NO_UNIT = -1
SIDE_SUM = ".side"  # beside the arrays of a model in a sum: no parameter has such a name
BROADCAST = ".broadcast/"  # before names of what is sent beside the model: no parameter has such a name
NO_SECRET = 32 * "0"  # as long as a node's
LONGEST_TEXT = 300  # bytes of a node's error
LARGEST = {"round": 10**7, "below": 10**8, "answer_bytes": 1 << 32, "cells": 1 << 24}
"""What a node's memory must allow of an order's numbers, by the name of the field."""
_NONCE, _MAGIC = 16, b"fedamp\0\2"  # bytes; with the version of the layout
_FEW = 1 << 20  # bytes that are one object of a message; more are cut in chunks
_HEAD = 4096  # the described part of an order has a multiple of so many bytes
_ORDER = struct.Struct("<QQ")  # bytes of the described part; rows
_EXPECTED = "expected: as fedamp.client.app answers"
# What the described part of an order holds as it is, by the name of its field.
_TOLD = {name: name for name in ("task", "round", "clips", "extracted", "frozen", "secret", "below", "cells", "trains")}
_TOLD["answer_bytes"] = "bytes"

Rows = NDArray[np.void]
"""Rows of :data:`UNIT`."""


def rows(ids: Iterable[int] | NDArray[Any], seeds: Any, submodels: Any = WHOLE, counted: Any = True) -> Rows:
    """Make rows of units.

    Args:
        ids: of the units, int64 [units].
        seeds: 32 bytes for each of them.
        submodels: of each, or of all; :data:`fedamp.models.model.WHOLE`: the whole model.
        counted: whether each counts; False for dummies.

    >>> rows([7, 9], bytes(32))["id"].tolist()
    [7, 9]
    """
    ids = np.asarray(ids, np.int64)
    made = np.zeros(len(ids), UNIT)
    made["id"], made["submodel"], made["counted"] = ids, submodels, counted
    made["seed"] = np.asarray(seeds, f"V{rng.SEED_BYTES}")
    return made


def padded(units: Rows, room: int) -> Rows:
    """Fill up rows with others that have no unit, to ``room`` in all, so that their number does not tell who trains."""
    return np.concatenate([units, rows(np.full(room - len(units), NO_UNIT), bytes(rng.SEED_BYTES))])


@dataclass(kw_only=True)
class UpdateCounts:
    """Numbers of the units whose updates are in a sum, from the node that trains them to the summary of the run.

    They are computed from private data without noise: they must stay on the server. A further number is a field here,
    is counted where units train, and is on its way through messages and sums by that. Its type decides its bytes: an
    ``int`` takes those of an unsigned number of 64 bits, a ``float`` must be finite.

    Attributes:
        failed: units that add zero: records could not be read or trained, or the update was not finite.
        clipped: units whose update was longer than the norm in some part.
        below_clip: units whose update was within the norm in every part.
        records: in the first batches of units that did not fail.
        loss_sum: of the received model over these records, before training.
    """

    failed: int = 0
    clipped: int = 0
    below_clip: int = 0
    records: int = 0
    loss_sum: float = 0.0

    def add_claimed(self, claimed: "UpdateCounts", reported: int, most: int) -> None:
        """Add the numbers that a node claims, as far as they can be true.

        Args:
            claimed: by the node.
            reported: units that have reported on the node.
            most: units that it was asked for.
        """
        self.failed += min(claimed.failed, most)
        self.clipped += min(claimed.clipped, reported)
        self.below_clip += min(claimed.below_clip, reported)
        self.records += claimed.records
        self.loss_sum += min(max(claimed.loss_sum, -_LARGEST_LOSS), _LARGEST_LOSS)


_LARGEST_LOSS = 1e100  # of one node: sums of what nodes claim stay finite
_NUMBERS = (*((each.name, each.type) for each in fields(UpdateCounts)), ("seconds", float))
_ANSWER = struct.Struct(  # status, counts and seconds, text
    f"<B7x{''.join('d' if kind is float else 'Q' for _, kind in _NUMBERS)}{LONGEST_TEXT}s4x"
)


class _AnswerForm(NamedTuple):
    """The form of an answer, which its order decides.

    Attributes:
        ids: of the units that the answer may name, each at its bit, int64; -1: no unit. Their number is a multiple of
            64.
        shapes: of the sums, by name.
        length: bytes of an answer of another protocol.
    """

    ids: NDArray[np.int64]
    shapes: dict[str, tuple[int, ...]]
    length: int

    @property
    def head(self) -> int:
        """Bytes before the sums."""
        return _ANSWER.size + len(self.ids) // 8 + self.length

    @property
    def sums(self) -> int:
        """Bytes of the sums."""
        return 8 * sum(map(math.prod, self.shapes.values()))


@dataclass(frozen=True, eq=False)
class RoundOrder:
    """An order to a node for a round; without ``arrays`` and ``exchange`` it is a query for the units that live there.

    Attributes:
        task: the :class:`fedamp.client.task.ClientTask` as JSON.
        round: from 1; 0 in a query.
        clips: clipping norm of all that is trained; or of its shared and its split part.
        rows: the units (:data:`UNIT`).
        arrays: the global model, or its submodel ``extracted``, by name. They are shared, so never write to them.
        extracted: number of the submodel that was sent; :data:`fedamp.models.model.WHOLE`: the whole model.
        frozen: names of the arrays that the answer leaves out.
        config: the ``train_config`` that a server app gave to ``start``.
        secret: by which the node knows that the order is the server's; of a query: nothing.
        below: units with smaller ids may be named in the answer to a query.
        exchange: what a protocol of an aggregator tells beside, by name.
        answer_bytes: length of that protocol's answer; 0: a sum is asked.
        cells: numbers of a side sum (:class:`fedamp.federation.side_sums.SideSum`); 0: none is asked.
        trains: whether the units train; False: only a side sum is asked.
        broadcast: arrays that local training reads beside the model, by name; the answer has none of them.
        following: rows of the next round, which a simulated node may draw ahead; sealed bytes never have them.

    Raises:
        ValueError: norms of more than two parts, units with another submodel than the one that was sent, or a number
            beyond ``LARGEST``.
    """

    task: str
    round: int = 0
    clips: tuple[float, ...] = ()
    rows: Rows = field(default_factory=lambda: np.zeros(0, UNIT))
    arrays: Arrays = field(default_factory=dict)
    extracted: int = WHOLE
    frozen: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    secret: str = NO_SECRET
    below: int = 0
    exchange: Mapping[str, Any] = field(default_factory=dict)
    answer_bytes: int = 0
    cells: int = 0
    trains: bool = True
    broadcast: Arrays = field(default_factory=dict)
    following: Rows = field(default_factory=lambda: np.zeros(0, UNIT))

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            if not 0 <= (number := getattr(self, name)) <= largest:
                raise ValueError(f"{name} must be from 0 to {largest}, got {number}")
        if len(self.clips) > 2:
            raise ValueError(f"clips must be [all] or [shared, split], got {len(self.clips)} numbers")
        if self.extracted != WHOLE and set(found := self.units["submodel"].tolist()) - {self.extracted}:
            raise ValueError(f"submodels must all be {self.extracted}, the one that was sent, got {found}")

    @property
    def units(self) -> Rows:
        """Rows with a unit, in their order; rows without one only fill up the message."""
        units: Rows = self.rows[self.rows["id"] != NO_UNIT]
        return units

    @property
    def ids(self) -> list[int]:
        """Ids of the units."""
        ids: list[int] = self.units["id"].tolist()
        return ids

    @property
    def counted(self) -> list[int]:
        """Ids of the units that are no dummies."""
        units = self.units
        ids: list[int] = units["id"][units["counted"]].tolist()
        return ids

    @property
    def dummies(self) -> frozenset[int]:
        """Ids of the units that do not count."""
        units = self.units
        return frozenset(units["id"][~units["counted"]].tolist())

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything that decides the sum. The secret of the node is not in it."""
        told = repr([self.task, self.round, self.clips, self.extracted, self.frozen, sorted(self.config.items())])
        told += f" {self.cells} {self.trains}"
        found = sha256(told.encode() + self.rows.tobytes())
        for name, array in sorted(self._sent.items()):
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.digest()

    @property
    def answer_size(self) -> int:
        """Bytes of any sealed answer to this order, whatever the node does."""
        return _NONCE + len(_MAGIC) + self._form.head + self._form.sums

    def content(self) -> RecordDict:
        """Write the order as the content of a message to a simulated node.

        The arrays are shared, so never write to them.
        """
        told = ConfigRecord({"head": self._head()})
        if len(self.following):
            told["following"] = self.following.tobytes()
        return RecordDict({"order": told, "arrays": flower.to_record(self._sent)})

    def sealed(self) -> bytes:
        """Write the order as sealed bytes, for the node of a deployment."""
        return _seal_parts([self._head(), *(np.ascontiguousarray(array).data for array in self._sent.values())])

    @classmethod
    def of(cls, content: RecordDict) -> Self:
        """Read an order from the content of a message, simulated or sealed.

        Raises:
            DeploymentError: it has no order, or one of another version of fedamp.
        """
        order, arrays, data = content.get("order"), content.get("arrays"), sealed_bytes(content)
        try:
            if data is not None:
                return cls._read(_open_sealed(data))
            if not isinstance(order, ConfigRecord) or not isinstance(arrays, ArrayRecord):
                raise ValueError("it has no order")
            read = cls._read(memoryview(order["head"]), flower.from_record(arrays))  # type: ignore[arg-type]
            following = order.get("following")
            return replace(read, following=np.frombuffer(following, UNIT)) if isinstance(following, bytes) else read
        except Exception as error:
            raise DeploymentError(
                f"the message cannot be read ({error}); expected: one of a server with the same version of fedamp"
            ) from None

    @property
    def _sent(self) -> Arrays:
        """All arrays of the message: those of the model, and those that are broadcast beside it."""
        return {**self.arrays, **{BROADCAST + name: array for name, array in self.broadcast.items()}}

    def _head(self) -> bytes:
        """Write all but the arrays: two lengths, the described part filled up to a multiple of 4096 bytes, the rows."""
        told: dict[str, Any] = {key: getattr(self, name) for name, key in _TOLD.items()}
        told |= {"clips": list(self.clips), "frozen": list(self.frozen)}
        told["arrays"] = [f"{a.dtype.str} {','.join(map(str, a.shape))} {name}" for name, a in self._sent.items()]
        told |= {f"config/{key}": value for key, value in self.config.items()}
        told |= {f"exchange/{key}": value for key, value in self.exchange.items()}
        described = ConfigRecord(told).deflate()
        start = _ORDER.pack(len(described), len(self.rows))
        return b"".join([start, described, bytes(-len(described) % _HEAD), self.rows.tobytes()])

    @classmethod
    def _read(cls, data: memoryview, arrays: Arrays | None = None) -> Self:
        """Read what :meth:`_head` writes, and the arrays behind it, unless they are given."""
        length, count = _ORDER.unpack_from(data)
        told: dict[str, Any] = dict(ConfigRecord.inflate(bytes(data[_ORDER.size : _ORDER.size + length])))
        place = _ORDER.size + length + -length % _HEAD
        units = np.frombuffer(data, UNIT, count, place)
        place += units.nbytes
        if arrays is None:
            arrays = {}
            for spec in told["arrays"]:
                kind, numbers, name = spec.split(" ", 2)
                shape = tuple(map(int, filter(None, numbers.split(","))))
                arrays[name] = np.frombuffer(data, kind, math.prod(shape), place).reshape(shape)
                place += arrays[name].nbytes
        if place != len(data):
            raise ValueError(f"it has {len(data)} bytes, not {place}")
        config, exchange = (
            {key.removeprefix(prefix): value for key, value in told.items() if key.startswith(prefix)}
            for prefix in ("config/", "exchange/")
        )
        given = {name: told[key] for name, key in _TOLD.items()}
        given |= {"clips": tuple(told["clips"]), "frozen": tuple(told["frozen"])}
        beside = {name: arrays.pop(name) for name in list(arrays) if name.startswith(BROADCAST)}
        given["broadcast"] = {name.removeprefix(BROADCAST): array for name, array in beside.items()}
        return cls(**given, rows=units, arrays=arrays, config=config, exchange=exchange)

    @cached_property
    def _form(self) -> _AnswerForm:
        """Derive the form of the answer, once for each order."""
        asked, shapes = np.arange(self.below), dict[str, tuple[int, ...]]()
        if self.arrays and not self.answer_bytes:
            asked = np.where(self.rows["counted"], self.rows["id"], NO_UNIT)
            trained = self.arrays if self.trains else {}
            shapes = {name: array.shape for name, array in trained.items() if name not in self.frozen}
            shapes |= {SIDE_SUM: (self.cells,)} if self.cells else {}
        elif self.answer_bytes:
            asked = asked[:0]
        places = np.full(len(asked) + -len(asked) % 64, NO_UNIT)
        places[: len(asked)] = asked
        return _AnswerForm(places, shapes, self.answer_bytes)


class AnswerStatus(IntEnum):
    """The status of an answer, its first byte.

    Attributes:
        DONE: it answers the order.
        ANY_UNIT: to a query: this node can train any unit.
        FAILED: the node could not, or may not, do it; the text says why.
        STARTED_AGAIN: the node has forgotten the server, and waits for a query.
    """

    DONE = 0
    ANY_UNIT = 1  # to a query: this node can train any unit
    FAILED = 2
    STARTED_AGAIN = 3  # the node has forgotten the server, and waits for a query


class NodeFailedError(ValueError):
    """The node has no answer, and says why.

    Args:
        why: the text of the answer.
        status: of the answer.

    Attributes:
        status: of the answer.
    """

    def __init__(self, why: str, status: AnswerStatus) -> None:
        super().__init__(why or "no reason is given")
        self.status = status


@dataclass
class RoundAnswer(UpdateCounts):
    """The answer of a node to an order. It is computed from private data without noise: it must stay on the server.

    Units that fail are ``reported``: failure follows from data, and must not decide whether a round has its quorum.
    Dummies are in none of the numbers.

    Attributes:
        sums: float64, of the clipped updates, by name.
        reported: ids of the units in the sum; in the answer to a query, of the units that live on the node.
        seconds: of the training.
        text: why the first unit failed, or why the node did; in the answer to a query, the node's secret. At most 300
            bytes are sent.
        data: an answer of another protocol.
        status: of the answer.
    """

    sums: Sums = field(default_factory=dict)
    reported: list[int] = field(default_factory=list)
    seconds: float = 0.0
    text: str = ""
    data: bytes = b""
    status: AnswerStatus = AnswerStatus.DONE

    def content(self, order: RoundOrder) -> RecordDict:
        """Write the answer of a simulated node as the content of a message.

        Args:
            order: that is answered.

        Raises:
            ValueError: the answer names other units than the order, or has other bytes.
        """
        head = ConfigRecord({"head": self._head(order._form)})
        return RecordDict({"answer": head, "arrays": flower.to_record(self.sums)})

    def sealed(self, order: RoundOrder) -> bytes:
        """Write the answer of a deployment's node as sealed bytes, as many as the order asks for.

        Args:
            order: that is answered.

        Raises:
            ValueError: the answer names other units than the order, or its sums have other names or shapes.
        """
        form = order._form
        head, has_sums = self._head(form), self.status in (AnswerStatus.DONE, AnswerStatus.ANY_UNIT)
        if has_sums and {name: array.shape for name, array in self.sums.items()} != form.shapes:
            raise ValueError(f"the sums are {sorted(self.sums)}; expected: {sorted(form.shapes)} in the model's shapes")
        sums = (self.sums[name] for name in form.shapes) if has_sums else [np.zeros(form.sums // 8)]
        return _seal_parts([head, *(np.ascontiguousarray(array, "<f8").data for array in sums)])

    @classmethod
    def of(cls, content: RecordDict, order: RoundOrder) -> Self:
        """Read the answer of a simulated node; its sums are not looked at.

        Args:
            content: of the reply.
            order: that it answers.

        Raises:
            ValueError: it is not of the form that the order asks for.
            NodeFailedError: the node says why there is no answer.
        """
        head, arrays = content.get("answer"), content.get("arrays")
        if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            found = ", ".join(sorted(content)) or "nothing"
            raise ValueError(f"it answered with {found}; {_EXPECTED}")
        form, data = order._form, head.get("head")
        if not isinstance(data, bytes) or len(data) != form.head:
            raise ValueError(f"the head of its answer has not {form.head} bytes; {_EXPECTED}")
        return cls._read(memoryview(data), form, flower.from_record(arrays))

    @classmethod
    def opened(cls, data: bytes, order: RoundOrder) -> Self:
        """Read the answer of a deployment's node.

        It takes the memory of ``data`` once more, and nothing for bytes that are no answer.

        Args:
            data: the sealed bytes.
            order: that they answer.

        Raises:
            ValueError: they are not of the form that the order asks for.
            NodeFailedError: the node says why there is no answer.
        """
        form = order._form
        if len(data) != order.answer_size:
            raise ValueError(f"its answer has {len(data)} bytes; expected: {order.answer_size}, {_EXPECTED[10:]}")
        body, sums = _open_sealed(data), dict[str, NDArray[np.float64]]()
        place = form.head
        for name, shape in form.shapes.items():
            sums[name] = np.frombuffer(body, "<f8", math.prod(shape), place).reshape(shape)
            place += sums[name].nbytes
        return cls._read(body[: form.head], form, sums)

    def _head(self, form: _AnswerForm) -> bytes:
        """Write all but the sums; a failed answer has zeros where another protocol's bytes would be."""
        named, failed = np.array(self.reported, np.int64), self.status not in (AnswerStatus.DONE, AnswerStatus.ANY_UNIT)
        bits = (form.ids != NO_UNIT) & np.isin(form.ids, named)
        if bits.sum() != len(named):
            others = np.setdiff1d(named, form.ids)[:8].tolist()
            raise ValueError(f"units {others} are not those that the server asks for")
        data = bytes(form.length) if failed else self.data
        if len(data) != form.length:
            raise ValueError(f"the answer has {len(data)} bytes, and the server asks for {form.length}")
        numbers = [getattr(self, name) for name, _ in _NUMBERS]
        text = self.text.encode(errors="replace")[:LONGEST_TEXT]
        return b"".join([_ANSWER.pack(self.status, *numbers, text), np.packbits(bits, bitorder="little").data, data])

    @classmethod
    def _read(cls, head: memoryview, form: _AnswerForm, sums: Sums) -> Self:
        """Read what :meth:`_head` writes, and refuse units that were not asked for and numbers that are not finite."""
        status, *numbers, text = _ANSWER.unpack_from(head)
        said, end = text.rstrip(b"\0").decode(errors="replace"), form.head - form.length
        if status not in (AnswerStatus.DONE, AnswerStatus.ANY_UNIT):
            raise NodeFailedError(
                said, AnswerStatus.STARTED_AGAIN if status == AnswerStatus.STARTED_AGAIN else AnswerStatus.FAILED
            )
        bits = np.frombuffer(head, np.uint8, end - _ANSWER.size, _ANSWER.size)
        named = form.ids[np.unpackbits(bits, bitorder="little").astype(bool)]
        if (named == NO_UNIT).any():
            raise ValueError("it claims units that it was not asked to train")
        if not all(map(math.isfinite, numbers)):
            raise ValueError("its loss or its seconds are not finite")
        counts = {name: number for (name, _), number in zip(_NUMBERS, numbers, strict=True)}
        return cls(sums, named.tolist(), text=said, data=bytes(head[end:]), status=AnswerStatus(status), **counts)


def message_content(data: bytes) -> RecordDict:
    """Make the content of a message with sealed bytes.

    Each object of a message takes four requests on its way, so few bytes are in a record without arrays.
    """
    if len(data) <= _FEW:
        return RecordDict({"sealed": ConfigRecord({"bytes": data})})
    return RecordDict({"sealed": ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})})


def sealed_bytes(content: RecordDict) -> bytes | None:
    """Return the sealed bytes of a message; None: it has none."""
    found = content.get("sealed")
    data = found.get("bytes") if isinstance(found, ArrayRecord | ConfigRecord) and set(found) == {"bytes"} else None
    data = data.data if isinstance(data, Array) else data
    return data if isinstance(data, bytes) else None


def _seal_parts(parts: Iterable[Any]) -> bytes:
    """Put a fresh nonce before the parts, and the parts under its keystream."""
    nonce = rng.fresh_bytes(_NONCE)
    return nonce + _nonce_stream(nonce).masked(b"".join([_MAGIC, *parts]))


def _open_sealed(data: bytes) -> memoryview:
    """Decrypt sealed bytes.

    Raises:
        ValueError: they are none of this version.
    """
    stream, start = _nonce_stream(data[:_NONCE]), _NONCE + len(_MAGIC)
    if stream.masked(data[_NONCE:start]) != _MAGIC:
        raise ValueError("its bytes are not a message of this version of fedamp")
    return memoryview(stream.masked(memoryview(data)[start:]))


def _nonce_stream(nonce: bytes) -> rng.Stream:
    """Make the keystream of a nonce: it hides equal contents from Flower's store, and nothing from a reader."""
    return rng.stream(int.from_bytes(nonce, "little"), "sealed")
