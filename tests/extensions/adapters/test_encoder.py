"""Features of texts by a public encoder, against the library's network on each text by itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedamp.data.sections import NpzData
from fedamp.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "train.npz", x=np.zeros((20, 2, 9, 12), np.float32), y=np.arange(20) % 2)
    return tmp_path


def transformed(folder, *steps):
    config = NpzData(name="npz", path=str(folder), transform=steps, test_fraction=0.5, classes=2)
    return config.load(0, Path("/")).by_record().gather(np.arange(10)).inputs[:, 0]


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """A folder as Hugging Face's hub has them, with random weights."""
    import transformers

    monkeypatch.setenv("FEDAMP_MODELS", str(tmp_path))
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    network = transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes)).eval()
    network.save_pretrained(tmp_path / "encoder")
    return network


@pytest.fixture
def texts(folder):
    """Tokens of twenty texts of one to nine words."""
    generator = np.random.default_rng(3)
    tokens = generator.integers(1, 50, (20, 9))
    tokens[np.arange(9) >= generator.integers(1, 10, (20, 1))] = 0
    np.savez(folder / "train.npz", x=tokens, y=np.arange(20) % 2)
    return tokens


def test_an_encoded_text_is_the_mean_of_its_own_words_in_the_last_layer(folder, texts, encoder):
    found = transformed(folder, {"name": "encode", "folder": "encoder"})
    assert found.shape == (10, 16)
    means = {}
    for text in texts:  # alone, and without places beyond its end
        words = torch.from_numpy(text[text != 0])[None]
        mean = encoder(input_ids=words).last_hidden_state[0].mean(0).detach().numpy()
        means[text.tobytes()] = mean / np.linalg.norm(mean)
    closest = [min(np.abs(row - mean).max() for mean in means.values()) for row in found]
    assert max(closest) < 1e-5  # rounding of float32 in two layers


def test_other_weights_give_other_features_and_no_kept_ones(folder, texts, encoder):
    before = transformed(folder, {"name": "encode", "folder": "encoder"})
    with torch.no_grad():
        encoder.encoder.layer[1].output.dense.weight.mul_(1.5)
    encoder.save_pretrained(folder / "encoder")
    assert not np.allclose(transformed(folder, {"name": "encode", "folder": "encoder"}), before, atol=1e-4)


def test_a_text_that_the_encoder_does_not_know_takes_only_itself_away(folder, texts, encoder):
    before = transformed(folder, {"name": "encode", "folder": "encoder"})
    texts[4, 0], texts[7, 0] = 50, -1
    np.savez(folder / "train.npz", x=texts, y=np.arange(20) % 2)
    after = transformed(folder, {"name": "encode", "folder": "encoder"})
    same = (before == after).all(1)
    assert same.sum() >= 8
    assert not after[~same].any() or np.isnan(after[~same]).all()  # not trained on


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"folder": "nowhere"}, r"encode: .*nowhere has no config\.json; expected: a folder of Hugging Face"),
        ({"folder": "encoder"}, r"transform\.0: encode takes tokens, .*\[2, 9, 12\]"),
    ],
)
def test_an_encoder_that_is_not_there_or_does_not_fit_is_refused(folder, encoder, step, message):
    if step["folder"] == "nowhere":
        np.savez(folder / "train.npz", x=np.ones((20, 9), int), y=np.arange(20) % 2)
    with pytest.raises(DataError, match=message):
        transformed(folder, {"name": "encode", **step})


def test_features_of_a_text_depend_on_no_other_text(folder, texts, encoder):
    before = transformed(folder, {"name": "encode", "folder": "encoder"})
    texts[1::2] = 0
    np.savez(folder / "train.npz", x=texts, y=np.arange(20) % 2)
    after = transformed(folder, {"name": "encode", "folder": "encoder"})
    kept = [np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    assert 0 < sum(kept) < 10
