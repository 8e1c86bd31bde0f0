"""Frozen weights, and where they come from."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters, pinned
from tests.models.splitting import refused


class Net(nn.Module):
    """A frozen body of which one tensor is tied, a table of whole numbers, a head."""

    def __init__(self, input_shape, num_classes, counts=False):
        super().__init__()
        self.body, self.again = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.again.weight = self.body.weight
        self.head, self.counts = nn.Linear(4, num_classes), counts
        self.register_buffer("order", torch.arange(4))
        self.body.requires_grad_(False)

    def forward(self, inputs):
        if self.counts:
            self.order += 1
        return self.head(torch.tanh(self.again(self.body(inputs[:, self.order % 4]))))


@pytest.fixture
def net(monkeypatch):
    monkeypatch.setattr("tests.models.test_pretrained.Net", Net)
    return Model(name="tests.models.test_pretrained:Net")


def test_only_what_requires_a_gradient_is_a_parameter(net):
    module = build(net, (4,), 3)
    assert [name for name, _ in module.named_parameters()] == ["head.weight", "head.bias"]
    assert module.again.weight.data_ptr() == module.body.weight.data_ptr()
    assert initial_parameters(net, (4,), 3, seed=2).keys() == {"head.weight", "head.bias"}


def test_patterns_say_what_is_trained(net):
    chosen = build(net.model_copy(update={"trainable": ("head.b*",)}), (4,), 3)
    assert [name for name, _ in chosen.named_parameters()] == ["head.bias"]
    more = build(net.model_copy(update={"trainable": ("body", "bias")}), (4,), 3)
    assert [name for name, _ in more.named_parameters()] == ["body.weight", "head.bias"]
    with refused("model.trainable: 'tail' matches no parameter; expected: such as head.bias"):
        build(net.model_copy(update={"trainable": ("tail",)}), (4,), 3)
    with refused("model.trainable is for a custom model; mlp takes none"):
        build(Model(name="mlp", trainable=("output",)), (4,), 3)


def test_a_counter_is_no_constant(net):
    with refused("order is no parameter, and changes when the model is called"):
        build(net.model_copy(update={"options": {"counts": True}}), (4,), 3)


def folder_of(path, tensors):
    path.mkdir()
    names = {name: f"model-{index}.safetensors" for index, name in enumerate(tensors)}
    for name, file in names.items():
        save_file({name: tensors[name]}, path / file)
    index = str({"weight_map": names}).replace("'", '"')
    (path / "model.safetensors.index.json").write_text(index)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "state_dict", "folder"])
def test_frozen_weights_come_from_a_file(net, tmp_path, kind):
    body = torch.randn(4, 4)
    if kind == "folder":
        path = folder_of(tmp_path / "there", {"old.body.weight": body, "pooler.weight": torch.ones(2)})
    else:
        path = tmp_path / f"start.{'pt' if kind == 'state_dict' else kind}"
        (torch.save if kind == "state_dict" else save_file)(
            {"old.body.weight": body, "pooler.weight": torch.ones(2)}, path
        )
    names = {"old.": "", "pooler": None}
    asked = pinned(net.model_copy(update={"initial": str(path), "initial_names": names}), (4,), 3)
    module = build(asked, (4,), 3)
    assert torch.equal(module.body.weight, body)
    assert torch.equal(module.again.weight, body)
    start, drawn = initial_parameters(asked, (4,), 3, seed=2), initial_parameters(net, (4,), 3, seed=2)
    assert all(np.array_equal(start[name], drawn[name]) for name in drawn)  # the head is not in the file
    for wrong, message in [
        ({}, "lacks .*body.weight; has unexpected old.body"),
        ({"": None}, "lacks again.weight, body"),
    ]:
        with refused(rf"{message}.*; model.initial_names maps prefixes"):
            build(net.model_copy(update={"initial": str(path), "initial_names": wrong}), (4,), 3)
    with refused(f"frozen weights .* expected: {asked.frozen_sha256}"):
        build(net.model_copy(update={"frozen_sha256": asked.frozen_sha256}), (4,), 3)


def test_files_that_do_not_fit_are_refused(net, tmp_path):
    for name, content in {"other.safetensors": b"no", "other.pt": b"no"}.items():
        (tmp_path / name).write_bytes(content)
        with refused("cannot be read"):
            build(net.model_copy(update={"initial": str(tmp_path / name)}), (4,), 3)
    save_file({"body.weight": torch.ones(2, 4)}, tmp_path / "short.safetensors")
    with refused(r"body.weight must have shape \[4, 4\], got \[2, 4\]"):
        build(net.model_copy(update={"initial": str(tmp_path / "short.safetensors")}), (4,), 3)
    (tmp_path / "empty").mkdir()
    with refused("no weights; expected: a folder with model.safetensors"):
        build(net.model_copy(update={"initial": str(tmp_path / "empty")}), (4,), 3)


def test_a_node_finds_frozen_weights_by_their_name(net, tmp_path, monkeypatch):
    save_file({"body.weight": torch.randn(4, 4)}, tmp_path / "start.safetensors")
    asked = pinned(net.model_copy(update={"initial": str(tmp_path / "start.safetensors")}), (4,), 3)
    told = asked.model_copy(update={"initial": "start.safetensors"})  # ClientTask.without_places
    with refused("model.initial start.safetensors: cannot be read"):
        build(told, (4,), 3)
    monkeypatch.setenv("FEDAMP_MODELS", str(tmp_path))
    assert torch.equal(build(told, (4,), 3).body.weight, build(asked, (4,), 3).body.weight)
