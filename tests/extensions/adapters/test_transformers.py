"""Models of transformers with adapters of peft."""

import copy
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedamp
from fedamp.errors import ModelError
from fedamp.extensions.adapters.transformers import write_factors
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters, pinned
from tests.models.splitting import refused

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks what transformers renames

SMALL = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
LORA = {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True}
GPT = {"name": "transformers:GPT2LMHeadModel", "vocabulary": 11}
LAYER, FACTORS = "base_model.model.transformer.h.0.attn.c_attn", "factors.safetensors"


@pytest.fixture(autouse=True)
def quiet():
    import transformers

    transformers.logging.set_verbosity_error()


def own(options=LORA):
    """The same model, by the libraries alone."""
    import peft
    import transformers

    settings = transformers.GPT2Config(
        **SMALL, vocab_size=11, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False
    )
    return peft.get_peft_model(transformers.GPT2LMHeadModel(settings), peft.LoraConfig(**options))


@pytest.fixture
def pretrained(tmp_path):
    """A folder with a base and public factors, and the base by the libraries alone."""
    torch.manual_seed(5)
    network = own().unload()
    network.save_pretrained(tmp_path / "pretrained")
    own().unload().save_pretrained(tmp_path / "other")
    write_factors(Model(**GPT, initial=str(tmp_path / "pretrained"), options={"lora": LORA}), 11, tmp_path / "other")
    return tmp_path / "pretrained", network


def test_factors_are_the_main_directions_of_a_public_change(pretrained):
    """By another decomposition."""
    folder, base = pretrained
    name = "transformer.h.0.attn.c_attn.weight"
    other = load_file(folder.parent / "other" / "model.safetensors")[name]
    change = (base.get_parameter(name).detach() - other).double().numpy().T  # [outputs, inputs]
    found = {name.split(".")[-2]: value.double().numpy() for name, value in load_file(folder / FACTORS).items()}
    assert found["lora_A"].shape == (4, 16)
    for each, squared in ((found["lora_A"].T, change.T @ change), (found["lora_B"], change @ change.T)):
        np.testing.assert_allclose(each.T @ each, np.eye(4), atol=1e-6)  # stored as float32
        main = np.linalg.eigh(squared)[1][:, :-5:-1]
        np.testing.assert_allclose(each @ each.T, main @ main.T, atol=1e-3)  # float32's rounding over the gaps


def test_a_head_takes_the_mean_of_an_encoder_s_own_tokens(tmp_path):
    """Against the library's encoder on each text by itself, without places beyond its end."""
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    torch.manual_seed(4)
    encoder = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=11)).eval()
    encoder.save_pretrained(tmp_path)
    lora = {"r": 2, "target_modules": ["query", "dense"], "layers_to_transform": [1]}
    asked = Model(
        name="transformers:BertModel",
        vocabulary=11,
        initial=str(tmp_path),
        options={"pool": "mean", "pad": 0, "lora": lora},
    )
    network = build(asked, (6,), 3)
    trained = {name.removeprefix("network.base_model.model.encoder.layer.1.") for name, _ in network.named_parameters()}
    assert {"head.weight", "head.bias", "intermediate.dense.lora_A.default.weight"} < trained
    assert all(name.startswith(("head", "attention", "intermediate", "output")) for name in trained)
    texts = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0]])
    assert not network(texts).any()
    head = torch.randn(3, 8)
    network.head.weight.data.copy_(head)
    for text, found in zip(texts, network(texts), strict=True):
        mean = encoder(text[text > 0][None]).last_hidden_state[0].mean(0)
        torch.testing.assert_close(found, head @ mean / mean.norm(), atol=1e-5, rtol=1e-5)
    for wrong in ({"name": "transformers:BertForSequenceClassification"}, {"options": {"pool": "first"}}):
        with refused("pool: '(mean|first)'; expected: mean, of a class without a head, such as BertModel"):
            build(asked.model_copy(update=wrong), (6,), 3)


@pytest.mark.parametrize("factors", ["both", "frozen", "middle"])
def test_adapters_of_peft_train_as_they_do_there(pretrained, factors):
    """A client's update after two steps, stacked with others, against torch's own SGD on the model of the libraries."""
    import peft

    from fedamp.client.training import StackTrainer
    from fedamp.data import PaddedRecords
    from fedamp.federation.local_training import LocalTraining
    from fedamp.federation.losses import TokenCrossEntropy
    from fedamp.models.pieces import Piece

    folder, base = pretrained
    asked = Model(**GPT, initial=str(folder), options={"lora": LORA, "factors": factors})
    piece = Piece.whole(asked, (8,), 11)
    start = {name: torch.from_numpy(each) for name, each in initial_parameters(asked, (8,), 11, seed=3).items()}
    sizes = {name.removeprefix(f"network.{LAYER}."): value.numel() for name, value in start.items()}
    A, B, middle = "lora_A.default.weight", "lora_B.default.weight", "lora_A.default.middle"
    assert sizes == {"both": {A: 4 * 16, B: 4 * 48}, "frozen": {B: 4 * 48}, "middle": {middle: 4 * 4}}[factors]
    generator = np.random.default_rng(0)
    records = generator.integers(0, 11, (3, 5, 8))
    labels = generator.integers(0, 11, (3, 5, 8))
    config = LocalTraining(steps=2, batch_size="full", learning_rate=0.5, loss="token-cross-entropy")
    seeds = np.frombuffer(bytes(range(96)), dtype="V32")
    trained = StackTrainer(piece.forward, config, loss=TokenCrossEntropy()).train(
        start, PaddedRecords(records, labels, np.full(3, 5)), seeds
    )
    for client in range(3):
        theirs = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**LORA))
        state = {name.removeprefix("network."): value for name, value in piece.module.state_dict().items()}
        state |= {name.removeprefix("network."): value for name, value in start.items()}
        theirs.load_state_dict({name: state[name] for name in theirs.state_dict()})
        trainable = [(name, value) for name, value in theirs.named_parameters() if value.requires_grad]
        values = {name.removeprefix(f"{LAYER}."): value for name, value in trainable}
        first, between = load_file(folder / FACTORS)[f"{LAYER}.lora_A.weight"], torch.zeros(4, 4)
        for _ in range(2):
            theirs.zero_grad()
            logits = theirs(torch.from_numpy(records[client])).logits
            nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels[client]).flatten()).backward()
            if factors == "middle":  # A = between @ first
                between -= 0.5 * values[A].grad @ first.T
                values[A].data = between @ first
            else:
                for name, value in values.items():
                    value.data -= 0.5 * value.grad * (name == B or factors == "both")
        for name, value in ({middle: between} if factors == "middle" else values).items():
            update = trained.updates.get(f"network.{LAYER}.{name}", torch.zeros(client + 1, 1))[client]
            assert torch.allclose(update, value.detach() - state[f"{LAYER}.{name}"], atol=1e-6), name
            assert update.abs().max() > 1e-4 or name == A


@pytest.mark.few(0)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("factors", "count", "submodels"),
    [
        ("both", 4 * (16 + 48), {"scheme": "none"}),  # ranks of A and B
        ("both", 4 * (16 + 48), {"scheme": "disjoint", "count": 2, "unowned": "partitioned"}),
        ("frozen", 4 * 48, {"scheme": "disjoint", "count": 2, "unowned": "partitioned"}),
        ("middle", 4 * 4, {"scheme": "none"}),
        ("middle", 4 * 4, {"scheme": "disjoint", "count": 2, "unowned": "partitioned"}),
    ],
)
def test_a_run_trains_adapters_alone_and_goes_back_to_peft(tmp_path, pretrained, factors, count, submodels):
    import peft

    folder, base = pretrained
    generator = np.random.default_rng(1)
    x, y = generator.integers(0, 11, (2, 60, 8))
    run = fedamp.run(
        name="lora",
        data=(x[:50], y[:50], np.arange(50) // 5),
        test=(x[50:], y[50:]),
        model={**GPT, "initial": str(folder), "options": {"lora": LORA, "factors": factors}},
        rounds=3,
        check_in={"scheme": "balanced", "k": 2},
        submodels=submodels,
        client={"loss": "token-cross-entropy", "steps": 1, "learning_rate": 0.5},
        privacy={"clip": 0.5, "noise_multiplier": 0.5, "delta": 1e-3, "precision": 0.05},
        engine={"kind": "serial"},
        out=tmp_path / "run",
    )
    assert run.summary.parameters == count
    assert run.summary.cost.bytes_per_check_in == 12 * count
    assert run.ledger.frozen_sha256
    trained = run.model().network
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the hub, which is not asked
        trained.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    tokens = torch.from_numpy(x[50:])
    with torch.no_grad():
        # The libraries alone compute attention by another kernel.
        assert torch.allclose(again(tokens).logits, trained(tokens).logits, atol=1e-5)
        assert not torch.allclose(trained(tokens).logits, trained.unload()(tokens).logits, atol=1e-4)


def test_factors_that_are_not_there_or_have_changed_are_refused(pretrained):
    folder, *_ = pretrained
    asked = Model(**GPT, initial=str(folder), options={"lora": LORA, "factors": "middle"})
    pin = pinned(asked, (8,), 11).frozen_sha256
    for options, message in [
        ({"lora": LORA, "factors": "none"}, "'none'; expected: both, frozen, middle"),
        ({"factors": "middle"}, "'middle' of nothing; expected: lora"),
        ({"lora": LORA | {"r": 5}, "factors": "middle"}, "none of rank 5 for it"),
        ({"lora": LORA | {"target_modules": ["wte"]}, "factors": "frozen"}, "wte is not a linear layer"),
        ({"lora": LORA | {"target_modules": ["c_fc"]}, "factors": "middle"}, "none of rank 4 for it"),
    ]:
        with refused(f"cannot be built with .*{message}"):
            build(asked.model_copy(update={"options": options}), (8,), 11)
    tensors = load_file(folder / FACTORS)
    save_file({name: -value for name, value in tensors.items()}, folder / FACTORS)
    with refused(f"frozen weights .* expected: {pin}"):
        build(asked.model_copy(update={"frozen_sha256": pin}), (8,), 11)
    (folder / FACTORS).unlink()
    with refused("factors.safetensors is not there; fedamp.extensions.adapters.transformers.write_factors makes it"):
        build(asked, (8,), 11)


def test_group_norms_keep_the_trained_scales_and_shifts_of_batch_norms(tmp_path):
    import transformers

    sizes = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1], "layer_type": "basic", "num_channels": 1}
    theirs = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
    expected = {}
    for name, each in theirs.named_modules():
        if isinstance(each, nn.BatchNorm2d):
            for parameter in (each.weight, each.bias):
                nn.init.normal_(parameter)
            expected[name] = each.weight.detach(), each.bias.detach()
    theirs.save_pretrained(tmp_path)
    asked = Model(name="transformers:ResNetForImageClassification", initial=str(tmp_path))
    network = build(asked, (1, 8, 8), 2).get_submodule("network")
    found = {name: each for name, each in network.named_modules() if isinstance(each, nn.GroupNorm)}
    assert list(found) == list(expected)
    for name, norm in found.items():
        assert torch.equal(norm.weight, expected[name][0])
        assert torch.equal(norm.bias, expected[name][1])


def test_what_the_library_does_not_know_is_refused():
    for model, message in [
        ({"name": "transformers:NoSuchModel"}, "transformers:NoSuchModel cannot be built .*NoSuchModel"),
        ({**GPT, "options": {**SMALL, "n_head": 3}}, "cannot be built with options="),
        (
            {**GPT, "options": {**SMALL, "lora": {**LORA, "target_modules": ["nothing"]}}},
            "cannot be built with .*nothing",
        ),
    ]:
        with refused(message):
            build(Model(**model), (8,), 11)
    with pytest.raises(ModelError, match="must answer logits of shape"):
        build(Model(**GPT, options=SMALL), (8,), 7)


def test_nobody_attends_to_padding():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 1.0}
    config = Model(name="transformers:BertForSequenceClassification", vocabulary=11, options={**sizes, "pad": 0})
    module = build(config, (6,), 3).eval()
    short = torch.tensor([[4, 7, 2]])
    padded = torch.nn.functional.pad(short, (0, 3))
    torch.testing.assert_close(module(padded), module(short), rtol=1e-5, atol=1e-6)  # sums of float32 in another order
    without = build(config.model_copy(update={"options": sizes}), (6,), 3).eval()
    assert not torch.allclose(without(padded), without(short), atol=1e-4)


FAMILIES = {
    "GPT2LMHeadModel": (SMALL, 64, 0),
    "LlamaForCausalLM": ({"num_key_value_heads": 2}, 24, 2),
    "BertForSequenceClassification": ({}, 24, 4),
    "DistilBertForSequenceClassification": ({"dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 4}, 24, 4),
    "ViTForImageClassification": ({"image_size": 8, "patch_size": 4}, 24, 4),
}
COMMON = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_left_out_neurons_and_heads_own_does_not_count(kind):
    """Whatever it is: the output under a mask is the same, and nothing of it has a gradient."""
    own, neurons, heads = FAMILIES[kind]
    image = kind.startswith("ViT")
    options = own if "n_embd" in own or "dim" in own else COMMON | own
    config = Model(name=f"transformers:{kind}", vocabulary=None if image else 11, options=options)
    classes = 11 if "LM" in kind else 3
    module = build(config, (3, 8, 8) if image else (6,), classes)
    masks = Masks(module)
    assert sorted(masks.layers.values()) == sorted([neurons, *[heads] * (heads > 0)])
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 8, 8) if image else torch.randint(11, (2, 6))
    mask = (torch.rand(masks.nodes) < 0.5).float()
    values = {name: (10 * value.detach()).requires_grad_() for name, value in module.named_parameters()}
    outputs = masks.call(values, inputs, mask)
    gradients = torch.autograd.grad(
        outputs.square().sum(), list(values.values()), allow_unused=True, materialize_grads=True
    )
    others, counted = {}, 0
    for (name, value), gradient in zip(values.items(), gradients, strict=True):
        changed = value.detach()[None].clone()
        for _, dropped in masks.dropped(name, value.shape, mask[None]):
            assert not gradient[None][dropped.expand_as(changed)].any(), name
            changed[dropped.expand_as(changed)] = 3.0
            counted += int(dropped.expand_as(changed).sum())
        others[name] = changed[0]
    assert counted > 100
    torch.testing.assert_close(masks.call(others, inputs, mask), outputs, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(masks.call(values, inputs, torch.ones(masks.nodes)), outputs, atol=1e-3)
