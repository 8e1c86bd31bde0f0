"""One sealed record a message: what a deployment's server and nodes send each other.

Flower keeps each part of a message under the hash of its content, and tells every registered node whether it has a
part. Two nodes that get the same model would see whether the other one is asked. So a message is one array of bytes: a
nonce that nobody can guess, and the content under a keystream that follows from it. No two parts are equal. Whoever has
the whole message can open it: TLS protects it on its way.

An order holds a strategy's records; its size follows from its model, and from how many units its node hosts. The order
decides each byte of the reply: numbers of fixed size, a bit for each unit, a short text, the sums. A reply has no names
and no lengths, so it cannot claim what was not asked for, nor take more memory than its own size.
"""

import math
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.errors import DeploymentError

LONGEST_TEXT = 300  # bytes of a node's error
HEAD = 4096  # the head of an order has a multiple of so many bytes
NONCE = 16
_MAGIC = b"fedamp\0\1"  # with the version of the form
_ORDER = struct.Struct("<III4x")  # bytes of the head; units; room for so many
_REPLY = struct.Struct(f"<B7x4q2d{LONGEST_TEXT}s4x")  # status, counts, loss and seconds, error
_DONE, _ANY_UNIT, _FAILED = 0, 1, 2
_UNIT_KEYS = {"clients": "<i8", "seeds": f"V{rng.SEED_BYTES}", "submodels": "<i4", "counted": "?"}
UNIT = np.dtype(list(_UNIT_KEYS.items()), align=True)
_Nested = defaultdict[str, dict[str, Any]]
_COUNTS, _MEASURES = ("failed", "clipped", "below_clip", "records"), ("loss_sum", "seconds")


def record(data: bytes) -> RecordDict:
    """The content of a message with these sealed bytes."""
    return RecordDict({"sealed": ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})})


def data_of(content: RecordDict) -> bytes | None:
    """The sealed bytes of a message; None: it has none."""
    found = content.get("sealed")
    return found["bytes"].data if isinstance(found, ArrayRecord) and set(found) == {"bytes"} else None


def seal_order(content: RecordDict) -> bytes:
    """A query, or an order to train, with the form of its answer: ``form`` with ``units`` and the ``frozen`` arrays."""
    config: dict[str, Any] = {
        f"{of}/{key}": value for of, part in content.config_records.items() for key, value in part.items()
    }
    arrays = {
        f"{of}/{name}": array.numpy() for of, part in content.array_records.items() for name, array in part.items()
    }
    columns = {key: config.pop(f"config/{key}", []) for key in _UNIT_KEYS}
    count, room = len(columns["clients"]), _room(content)
    units = np.zeros(room, UNIT)
    for key, column in columns.items():
        units[key][:count] = np.array(column, dtype=_UNIT_KEYS[key])
    specs = [f"{array.dtype.str} {','.join(map(str, array.shape))} {name}" for name, array in arrays.items()]
    head = ConfigRecord(config | {"arrays": specs}).deflate()
    start = [_ORDER.pack(len(head), count, room), head, bytes(-len(head) % HEAD), units.tobytes()]
    return _sealed([*start, *(np.ascontiguousarray(array).data for array in arrays.values())])


def open_order(data: bytes) -> RecordDict:
    """The content of an order; DeploymentError: it is none."""
    try:
        body = _opened(data)
        length, count, room = _ORDER.unpack_from(body)
        config = dict(ConfigRecord.inflate(bytes(body[_ORDER.size : _ORDER.size + length])))
        place = _ORDER.size + length + -length % HEAD
        units = np.frombuffer(body, UNIT, room, place)[:count]
        place += room * UNIT.itemsize
        arrays, configs = _Nested(dict), _Nested(dict)
        for spec in config.pop("arrays"):  # type: ignore[union-attr]
            kind, numbers, path = str(spec).split(" ", 2)
            of, _, name = path.partition("/")
            shape = tuple(map(int, filter(None, numbers.split(","))))
            arrays[of][name] = np.frombuffer(body, kind, math.prod(shape), place).reshape(shape)
            place += arrays[of][name].nbytes
        if place != len(body):
            raise ValueError(f"it has {len(body)} bytes, not {place}")
        for path, value in config.items():
            of, _, name = path.partition("/")
            configs[of][name] = value
        if "arrays" in arrays:
            configs["config"] |= {key: units[key].tolist() for key in _UNIT_KEYS}
    except Exception as error:
        raise DeploymentError(
            f"the message cannot be read ({error}); expected: one of a server with the same version of fedamp"
        ) from None
    records: dict[str, Any] = {of: flower.to_record(part) for of, part in arrays.items()}
    return RecordDict(records | {of: ConfigRecord(part) for of, part in configs.items()})


@dataclass(frozen=True)
class _Form:
    """What an order asks for: the ids of its units, which of them its reply may name, and the shapes of the sums."""

    ids: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    shapes: dict[str, tuple[int, ...]] | None  # None: of the answer to a query

    @classmethod
    def of(cls, order: RecordDict) -> "_Form":
        room = _room(order)
        if "arrays" not in order:
            return cls(np.arange(room), np.ones(room, bool), None)
        config = order.config_records["config"]
        clients: Any = config["clients"]
        ids, allowed = np.zeros(room, np.int64), np.zeros(room, bool)
        ids[: len(clients)], allowed[: len(clients)] = clients, config["counted"]
        frozen: Any = order.config_records["form"]["frozen"]
        shapes = {name: array.shape for name, array in order.array_records["arrays"].items() if name not in frozen}
        return cls(ids, allowed, shapes)

    @property
    def bits(self) -> int:
        """Bytes of the bits, a multiple of eight."""
        return -(-len(self.ids) // 64) * 8

    @property
    def size(self) -> int:
        numbers = sum(map(math.prod, (self.shapes or {}).values()))
        return NONCE + len(_MAGIC) + _REPLY.size + self.bits + 8 * numbers


def reply_size(content: RecordDict) -> int:
    """Bytes of any reply to an order."""
    return _Form.of(content).size


def failure(reason: str) -> RecordDict:
    """The content of a reply that says why there is none."""
    return RecordDict({"failure": ConfigRecord({"reason": reason})})


def seal_reply(content: RecordDict, order: RecordDict) -> bytes:
    """What a node answers; ValueError: not of the form of the order."""
    form = _Form.of(order)
    metrics, hosts, failed = (dict(content.get(name, {})) for name in ("metrics", "hosts", "failure"))
    status = _FAILED if failed else _ANY_UNIT if hosts.get("all") else _DONE
    text = str(failed.get("reason", "") or dict(content.get("errors", {})).get("first", ""))
    numbers = [*(metrics.get(key, 0) for key in _COUNTS), *(metrics.get(key, 0.0) for key in _MEASURES)]
    named = np.array(metrics.get("reported", hosts.get("clients", [])), np.int64)
    bits = form.allowed & np.isin(form.ids, named)
    if bits.sum() != len(named):
        unknown = sorted(set(named.tolist()) - set(form.ids[form.allowed].tolist()))[:8]
        raise ValueError(f"units {unknown} were not asked for; expected: of the {len(form.ids)} that the server has")
    sums = flower.from_record(content["arrays"]) if "arrays" in content else {}  # type: ignore[arg-type]
    shapes = form.shapes or {}
    if not failed and {name: array.shape for name, array in sums.items()} != shapes:
        raise ValueError(f"the sums are of {sorted(sums)}, not of {sorted(shapes)} in the shapes of the model")
    start = [
        _REPLY.pack(status, *numbers, text.encode()[:LONGEST_TEXT]),
        np.packbits(bits, bitorder="little").tobytes(),
    ]
    start.append(bytes(form.bits - len(start[1])))
    nothing = np.zeros(())
    parts = (np.broadcast_to(sums.get(name, nothing), shape) for name, shape in shapes.items())
    return _sealed([*start, *(np.ascontiguousarray(part, "<f8").data for part in parts)])


def open_reply(data: bytes, order: RecordDict) -> RecordDict:
    """A node's answer to an order. ValueError: it is not of the form, or the node says why there is none.

    It takes the memory of ``data`` once more, and nothing for bytes that are no reply.
    """
    form = _Form.of(order)
    if len(data) != form.size:
        raise ValueError(f"its answer has {len(data)} bytes; expected: {form.size}, as fedamp.client.app answers")
    body = _opened(data)
    status, *numbers, text = _REPLY.unpack_from(body)
    said = text.rstrip(b"\0").decode(errors="replace")
    if status == _FAILED:
        raise ValueError(said or "no reason is given")
    if status not in (_DONE, _ANY_UNIT):
        raise ValueError(f"its answer has status {status}; expected: 0, 1 or 2")
    place = _REPLY.size + form.bits
    named = np.unpackbits(np.frombuffer(body, np.uint8, form.bits, _REPLY.size), bitorder="little").astype(bool)
    if named[len(form.ids) :].any() or (named[: len(form.ids)] & ~form.allowed).any():
        raise ValueError("it claims units that it was not asked for")
    units = form.ids[named[: len(form.ids)]].tolist()
    if form.shapes is None:
        return RecordDict({"hosts": ConfigRecord({"all": status == _ANY_UNIT, "clients": units})})
    sums: dict[str, NDArray[np.float64]] = {}
    for name, shape in form.shapes.items():
        sums[name] = np.frombuffer(body, "<f8", math.prod(shape), place).reshape(shape)
        place += sums[name].nbytes
    metrics = MetricRecord({"reported": units, **dict(zip((*_COUNTS, *_MEASURES), numbers, strict=True))})
    content = RecordDict({"arrays": flower.to_record(sums), "metrics": metrics})
    if said:
        content["errors"] = ConfigRecord({"first": said})
    return content


def _room(order: RecordDict) -> int:
    """How many units an order, and its answer, have room for."""
    return int(order.config_records["form"]["units"])  # type: ignore[arg-type]


def _sealed(parts: list[Any]) -> bytes:
    nonce = rng.fresh_bytes(NONCE)
    return nonce + _keystream(nonce).masked(b"".join([_MAGIC, *parts]))


def _opened(data: bytes) -> memoryview:
    """The content of sealed bytes; ValueError: they are none."""
    stream = _keystream(data[:NONCE])
    start = NONCE + len(_MAGIC)
    if stream.masked(data[NONCE:start]) != _MAGIC:
        raise ValueError("its bytes are no message of this version of fedamp")
    return memoryview(stream.masked(memoryview(data)[start:]))


def _keystream(nonce: bytes) -> rng.Stream:
    return rng.stream(int.from_bytes(nonce, "little"), "sealed")
