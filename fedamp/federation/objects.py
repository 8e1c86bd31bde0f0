"""Turn settings that are objects of Python into digests, by which a scenario names them.

``fedamp.load`` and ``fedamp.run`` take a model, arrays, a loss or metrics from a notebook. They are kept by
:mod:`fedamp.base.given`; the scenario then has names such as ``given:Net-3f..``. Other processes of this machine find
the objects by them, and a run folder never holds code.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedamp.base import given
from fedamp.data.npz import store
from fedamp.errors import ScenarioError
from fedamp.federation import reader
from fedamp.federation.losses import LOSSES, Functions, Loss

OBJECTS = ("model", "data", "test", "loss", "metrics")
# Of a round's record, and of the frames made of it.
_TAKEN = {"round", "loss", "validation_score", "epsilon_upper", "scheduled", "reported", "seconds", "folder"}


def with_digests(raw: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace every object among a caller's settings by its digest.

    Args:
        raw: a scenario's content, or the name of its file.
        settings: of the caller by key path; ``model``, ``data``, ``test``, ``loss`` and ``metrics`` may be objects.

    Returns:
        The content (with a name, if it had none), and the settings, both without objects.

    Raises:
        ScenarioError: objects that do not fit each other, such as a test set without data.
        InputError: an object cannot be pickled, or there is no space for it.
    """
    model, data, test, loss, metrics = map(settings.get, OBJECTS)
    changes: dict[str, Any] = {}
    if callable(model):
        changes["model"] = _section_rest(raw, "model") | {"name": given.keep(model, "model")}
    if isinstance(data, tuple | list):
        natural: dict[str, Any] = {"partition": {"scheme": "natural"}} if len(data) == 3 else {}
        public = {} if test is None else {"test_is_public": True}  # whoever gives a test set says that it is public
        changes["data"] = natural | _section_rest(raw, "data") | public | {"name": "given", "digest": store(data, test)}
    elif test is not None:
        raise ScenarioError("test: given without data; expected: data=(x, y, client) beside it")
    if loss is not None or metrics is not None:
        client = settings.get("client")
        named = client.get("loss") if isinstance(client, Mapping) else settings.get("client.loss")
        changes["client.loss"] = _loss_name(raw, data, named if loss is None else loss, metrics or {})
    taken = {"test", "loss", "metrics"} | changes.keys()
    changes |= {key: value for key, value in settings.items() if key not in taken}
    return ({"name": "notebook", **raw} if isinstance(raw, Mapping) else raw), changes


def _section_rest(raw: Any, key: str) -> dict[str, Any]:
    """Return the keys of a section that names no data or model itself; an object takes the place of the name."""
    section = raw.get(key) if isinstance(raw, Mapping) else None
    return dict(section) if isinstance(section, Mapping) and "name" not in section else {}


def _loss_name(raw: Any, data: Any, loss: Any, metrics: Mapping[str, Any]) -> str:
    """Keep a loss and metrics, and return the name that stands for them in ``client.loss``."""
    for name in metrics:
        if not name.isidentifier() or name in _TAKEN or not callable(metrics[name]):
            raise ScenarioError(
                f"metrics: {name!r}; expected: functions by names such as auc, none of a frame's columns"
            )
    like = loss if isinstance(loss, str) else _loss_of_labels(raw, data)
    is_class = isinstance(loss, type) and issubclass(loss, Loss)
    if metrics and (is_class or like not in LOSSES):
        raise ScenarioError("metrics: the loss is a class with its own; expected: a function as loss, or no metrics")
    if not (callable(loss) or metrics):
        return like
    return given.keep(loss if is_class else Functions(like, loss if callable(loss) else None, dict(metrics)), "loss")


def _loss_of_labels(raw: Any, data: Any) -> str:
    """Choose the built-in loss whose labels are those of the data."""
    if isinstance(data, tuple | list):
        labels = np.asarray(data[1])
        whole = "token-cross-entropy" if labels.ndim > 1 else "cross-entropy"
        return "mean-squared-error" if labels.dtype.kind == "f" else whole
    client = raw.get("client", {}) if isinstance(raw, Mapping) else reader.load(raw).client.model_dump()
    return str(client.get("loss", "cross-entropy"))
