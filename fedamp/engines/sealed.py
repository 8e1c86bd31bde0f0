"""One sealed record a message: what a deployment's server and nodes send each other.

Flower keeps each part of a message under the hash of its content, and tells every registered node whether it has it. So
a message is one array of bytes: a nonce that nobody can guess, and the content under a keystream that follows from it.
No two parts are equal. Whoever has the whole message can open it: on its way, TLS protects it.

An order holds a strategy's records; its size follows from its model and from how many units its node hosts. The order
decides each byte of the reply: numbers of fixed size, a bit for each unit, a short text, the sums. A reply has no names
and no lengths, so it cannot claim what was not asked for, nor take more memory than its own size.
"""

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.errors import DeploymentError

STARTED_AGAIN = "it was started again, and does not know this server yet"
LONGEST_TEXT = 300  # bytes of a node's error
_NONCE, _MAGIC = 16, b"fedamp\0\1"  # bytes; with the version of the form
_HEAD = 4096  # the head of an order has a multiple of so many bytes
_ORDER = struct.Struct("<III4x")  # bytes of the head; units; room for so many
_REPLY = struct.Struct(f"<B7x4q2d{LONGEST_TEXT}s4x")  # status, counts, loss and seconds, error
_DONE, _ANY_UNIT, _FAILED = range(3)
_COLUMNS = {"clients": "<i8", "seeds": f"V{rng.SEED_BYTES}", "submodels": "<i4", "counted": "?"}
_UNIT = np.dtype(list(_COLUMNS.items()), align=True)
_NUMBERS = ("failed", "clipped", "below_clip", "records", "loss_sum", "seconds")


def record(data: bytes) -> RecordDict:
    """The content of a message with these sealed bytes."""
    return RecordDict({"sealed": ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})})


def data_of(content: RecordDict) -> bytes | None:
    """The sealed bytes of a message; None: it has none."""
    found = content.get("sealed")
    return found["bytes"].data if isinstance(found, ArrayRecord) and set(found) == {"bytes"} else None


def seal_order(content: RecordDict) -> bytes:
    """A query, or an order to train, with the form of its answer: ``form`` with ``units`` and the ``frozen`` arrays."""
    config, arrays = _flat(content.config_records), _flat(content.array_records)
    columns = {key: config.pop(f"config/{key}", []) for key in _COLUMNS}
    count, units = len(columns["clients"]), np.zeros(_room(content), _UNIT)
    for key, column in columns.items():
        units[key][:count] = np.array(column, dtype=_COLUMNS[key])
    arrays = {path: array.numpy() for path, array in arrays.items()}
    specs = [f"{array.dtype.str} {','.join(map(str, array.shape))} {path}" for path, array in arrays.items()]
    head = ConfigRecord(config | {"arrays": specs}).deflate()
    start = _ORDER.pack(len(head), count, len(units)), head, bytes(-len(head) % _HEAD), units.tobytes()
    return _sealed([*start, *(np.ascontiguousarray(array).data for array in arrays.values())])


def open_order(data: bytes) -> RecordDict:
    """The content of an order; DeploymentError: it is none."""
    try:
        body = _opened(data)
        length, count, room = _ORDER.unpack_from(body)
        config: dict[str, Any] = dict(ConfigRecord.inflate(bytes(body[_ORDER.size : _ORDER.size + length])))
        place, arrays = _ORDER.size + length + -length % _HEAD, dict[str, NDArray[Any]]()
        units = np.frombuffer(body, _UNIT, room, place)[:count]
        place += room * _UNIT.itemsize
        for spec in config.pop("arrays"):
            kind, numbers, path = spec.split(" ", 2)
            shape = tuple(map(int, filter(None, numbers.split(","))))
            arrays[path] = np.frombuffer(body, kind, math.prod(shape), place).reshape(shape)
            place += arrays[path].nbytes
        if place != len(body):
            raise ValueError(f"it has {len(body)} bytes, not {place}")
    except Exception as error:
        raise DeploymentError(
            f"the message cannot be read ({error}); expected: one of a server with the same version of fedamp"
        ) from None
    if arrays:
        config |= {f"config/{key}": units[key].tolist() for key in _COLUMNS}
    records: dict[str, Any] = {name: flower.to_record(part) for name, part in _nested(arrays).items()}
    return RecordDict(records | {name: ConfigRecord(part) for name, part in _nested(config).items()})


class _Form(NamedTuple):
    """What an order asks for."""

    ids: NDArray[np.int64]  # of the units that its reply may name, each at its bit; -1: no unit
    shapes: dict[str, tuple[int, ...]]  # of the sums
    length: int = 0  # bytes of an answer that is neither units nor sums (secure aggregation)

    @classmethod
    def of(cls, order: RecordDict) -> "_Form":
        room, config, shapes = _room(order), dict[str, Any](order.config_records.get("config") or {}), {}
        form: dict[str, Any] = dict(order.config_records["form"])
        asked, length = np.arange(room), int(form.get("bytes", 0))
        if "arrays" in order and not length:
            asked = np.where(config["counted"], np.array(config["clients"], np.int64), -1)
            frozen: Any = order.config_records["form"]["frozen"]
            shapes = {name: array.shape for name, array in order.array_records["arrays"].items() if name not in frozen}
        return cls(np.pad(asked, (0, -(-room // 64) * 64 - len(asked)), constant_values=-1), shapes, length)

    @property
    def size(self) -> int:
        numbers = sum(map(math.prod, self.shapes.values()))
        return _NONCE + len(_MAGIC) + _REPLY.size + len(self.ids) // 8 + 8 * numbers + self.length


def reply_size(content: RecordDict) -> int:
    """Bytes of any reply to an order."""
    return _Form.of(content).size


def failure(reason: str) -> RecordDict:
    """The content of a reply that says why there is none."""
    return RecordDict({"failure": ConfigRecord({"reason": reason})})


def seal_reply(content: RecordDict, order: RecordDict) -> bytes:
    """What a node answers; ValueError: not of the form of the order."""
    form, failed = _Form.of(order), "failure" in content
    told = _flat({**content.config_records, **content.metric_records})
    said = {path.partition("/")[2]: value for path, value in told.items()}
    status = _FAILED if failed else _ANY_UNIT if said.get("all") else _DONE
    text = str(said.get("reason", said.get("first", said.get("secret", "")))).encode()[:LONGEST_TEXT]
    named = np.array(said.get("reported", said.get("clients", [])), np.int64)
    bits = (form.ids >= 0) & np.isin(form.ids, named)
    if bits.sum() != len(named):
        raise ValueError(f"units {np.setdiff1d(named, form.ids)[:8].tolist()} are not those that the server asks for")
    sums = flower.from_record(content.array_records["arrays"]) if "arrays" in content else {}
    if not failed and {name: array.shape for name, array in sums.items()} != form.shapes:
        raise ValueError(f"the sums are {sorted(sums)}; expected: {sorted(form.shapes)} in the shapes of the model")
    parts = (np.broadcast_to(sums.get(name, np.zeros(())), shape) for name, shape in form.shapes.items())
    start = (
        _REPLY.pack(status, *(said.get(key, 0) for key in _NUMBERS), text),
        np.packbits(bits, bitorder="little").data,
    )
    data = bytes(form.length) if failed else said.get("data", b"")
    if len(data) != form.length:
        raise ValueError(f"the answer has {len(data)} bytes, and the server asks for {form.length}")
    return _sealed([*start, *(np.ascontiguousarray(part, "<f8").data for part in parts), data])


def open_reply(data: bytes, order: RecordDict) -> RecordDict:
    """A node's answer to an order. ValueError: it is not of the form, or the node says why there is none.

    It takes the memory of ``data`` once more, and nothing for bytes that are no reply.
    """
    form = _Form.of(order)
    if len(data) != form.size:
        raise ValueError(f"its answer has {len(data)} bytes; expected: {form.size}, as fedamp.client.app answers")
    body = _opened(data)
    status, *numbers, text = _REPLY.unpack_from(body)
    said, place = text.rstrip(b"\0").decode(errors="replace"), _REPLY.size + len(form.ids) // 8
    if status not in (_DONE, _ANY_UNIT):
        raise ValueError(said or "no reason is given")
    bits = np.frombuffer(body, np.uint8, len(form.ids) // 8, _REPLY.size)
    named = form.ids[np.unpackbits(bits, bitorder="little").astype(bool)]
    if (named < 0).any():
        raise ValueError("it claims units that it was not asked for")
    if form.length:
        return RecordDict({"answer": ConfigRecord({"data": bytes(body[place:])})})
    if "arrays" not in order:
        hosts: dict[str, Any] = {"all": status == _ANY_UNIT, "clients": named.tolist()}
        return RecordDict({"hosts": ConfigRecord(hosts | ({"secret": said} if said else {}))})
    sums: dict[str, NDArray[np.float64]] = {}
    for name, shape in form.shapes.items():
        sums[name] = np.frombuffer(body, "<f8", math.prod(shape), place).reshape(shape)
        place += sums[name].nbytes
    metrics = MetricRecord({"reported": named.tolist(), **dict(zip(_NUMBERS, numbers, strict=True))})
    content = RecordDict({"arrays": flower.to_record(sums), "metrics": metrics})
    if said:
        content["errors"] = ConfigRecord({"first": said})
    return content


def _room(order: RecordDict) -> int:
    """How many units an order, and its answer, have room for."""
    return int(order.config_records["form"]["units"])  # type: ignore[arg-type]


def _flat(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, part in records.items() for key, value in part.items()}


def _nested(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    records: dict[str, dict[str, Any]] = {}
    for path, value in flat.items():
        records.setdefault(path.partition("/")[0], {})[path.partition("/")[2]] = value
    return records


def _sealed(parts: list[Any]) -> bytes:
    nonce = rng.fresh_bytes(_NONCE)
    return nonce + _keystream(nonce).masked(b"".join([_MAGIC, *parts]))


def _opened(data: bytes) -> memoryview:
    """The content of sealed bytes; ValueError: they are none."""
    stream, start = _keystream(data[:_NONCE]), _NONCE + len(_MAGIC)
    if stream.masked(data[_NONCE:start]) != _MAGIC:
        raise ValueError("its bytes are no message of this version of fedamp")
    return memoryview(stream.masked(memoryview(data)[start:]))


def _keystream(nonce: bytes) -> rng.Stream:
    return rng.stream(int.from_bytes(nonce, "little"), "sealed")
