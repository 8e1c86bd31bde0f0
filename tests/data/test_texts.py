"""Texts as records of tokens: every token is learned once, nothing beyond a text counts."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedamp.data.form import NOT_COUNTED, TOKENS, Form
from fedamp.data.texts import CHARACTERS, DescriptionsData, TextData
from fedamp.errors import DataError

NATURAL = {"scheme": "natural", "column": "author"}
FORM = Form(TOKENS, vocabulary=CHARACTERS)


def write(folder, split="train", texts=(("ann", "to be, or"), ("bob", "x"), ("ann", "not to be\u00e9!"), ("eve", ""))):
    lines = [json.dumps({"author": author, "text": text}) for author, text in texts]
    (folder / f"{split}.json").write_text("\n".join(lines) + "\n")


def text_data(folder, **keys):
    return TextData(**{"name": "text", "path": str(folder), "length": 4, "partition": NATURAL} | keys)


def spelled(tokens):
    return "".join(chr(token + 32) if token < CHARACTERS - 1 else "#" for token in tokens)


def pairs(inputs, labels):
    """Each character that counts, after the one before it."""
    return [
        (spelled([one]), spelled([next_]))
        for one, next_ in zip(inputs.ravel(), labels.ravel(), strict=True)
        if next_ >= 0
    ]


def test_each_token_is_learned_once_from_the_one_before_it(tmp_path):
    write(tmp_path)
    write(tmp_path, "test", [("zoe", "yes")])
    dataset = text_data(tmp_path, test_is_public=True).load(0, tmp_path, FORM)
    assert (dataset.num_clients, dataset.input_shape, dataset.num_classes) == (3, (4,), CHARACTERS)
    cohort = dataset.gather(np.array([0, 1, 2]))
    assert cohort.sizes.tolist() == [3 + 3, 1, 1], "10, 12, 2 and 1 tokens, the last one the end of a text"
    ann = "to be, or#", "not to be#!#"
    expected = [pair for text in ann for pair in pairwise(text)]
    assert pairs(cohort.inputs[0], cohort.labels[0]) == expected
    assert pairs(cohort.inputs[1, :1], cohort.labels[1, :1]) == [("x", "#")]
    assert (cohort.labels[2, 0] == NOT_COUNTED).all(), "nothing follows from nothing"
    assert pairs(*dataset.test()) == list(zip("yes", "es#", strict=True))


@pytest.mark.parametrize("label", [None, "topic"])
def test_a_row_without_a_text_takes_its_own_author_away(tmp_path, label):
    rows = [{"author": name, "text": text, "topic": 1} for name, text in (("ann", "one"), ("bob", None), ("eve", "b"))]
    (tmp_path / "train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = FORM if label is None else Form(vocabulary=CHARACTERS)
    dataset = text_data(tmp_path, label=label, classes=2).load(0, tmp_path, form)
    assert dataset.sizes(np.arange(3)).tolist() == [1, 0, 1]
    assert dataset.cannot_train(np.arange(3)).tolist() == [False, True, False]


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=40), st.integers(1, 9))
def test_no_text_is_lost(tmp_path_factory, text, length):
    folder = tmp_path_factory.mktemp("texts")
    write(folder, texts=[("ann", text)])
    write(folder, "test", [("bob", "b")])
    dataset = text_data(folder, length=length).load(0, folder, FORM)
    cohort = dataset.gather(np.array([0]))
    counted = cohort.labels[cohort.labels != NOT_COUNTED]
    # Printable ASCII has a token each; all other characters, and the end, share the last one.
    spelled_out = [ord(each) - 32 if 32 <= ord(each) <= 126 else CHARACTERS - 1 for each in text]
    assert counted.tolist() == [*spelled_out[1:], CHARACTERS - 1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_other_files_hold_the_same(tmp_path, kind):
    write(tmp_path)
    other = tmp_path / kind
    other.mkdir()
    rows = [json.loads(line) for line in (tmp_path / "train.json").read_text().splitlines()]
    getattr(pd.DataFrame(rows[:3]), f"to_{kind}")(other / f"train.{kind}", index=False)
    one = text_data(other).load(0, tmp_path, FORM)
    write(tmp_path, texts=[(row["author"], row["text"]) for row in rows[:3]])
    another = text_data(tmp_path).load(0, tmp_path, FORM)
    np.testing.assert_array_equal(one.gather(np.arange(2)).inputs, another.gather(np.arange(2)).inputs)


def test_a_tokenizer_of_hugging_face(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1, "or": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    write(tmp_path, texts=[("ann", "to be or not to be")])
    write(tmp_path, "test", [("bob", "to be")])
    dataset = text_data(tmp_path, tokenizer="words.json").load(0, tmp_path, Form(TOKENS, vocabulary=4))
    cohort = dataset.gather(np.array([0]))
    assert dataset.num_classes == 4
    assert cohort.inputs[0].ravel()[:5].tolist() == [0, 1, 2, 3, 0]
    assert cohort.labels[0].ravel()[:5].tolist() == [1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("keys", "texts", "said"),
    [
        ({"text": "body"}, None, "no column 'body'; data.text must be one of"),
        ({"tokenizer": "no.json"}, None, "data.tokenizer: .*no.json cannot be read"),
        ({"partition": {"scheme": "natural", "column": "who"}}, None, "no column 'who'; data.partition.column must"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, keys, texts, said):
    write(tmp_path, **({} if texts is None else {"texts": texts}))
    with pytest.raises(DataError, match=said):
        text_data(tmp_path, **keys).load(0, tmp_path, FORM)


@pytest.mark.slow
def test_descriptions_themselves():
    """Of Debian 12: some 63,000 packages, of over 2,000 maintainers, a tenth of whom are for the test."""
    try:
        dataset = DescriptionsData(name="descriptions").load(0, "/", FORM)
    except DataError as error:
        pytest.skip(str(error))
    _, labels = dataset.test()
    assert dataset.num_clients > 1000
    assert 5_000 < len(labels) < dataset.sizes(np.arange(dataset.num_clients)).sum()


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_DATA", str(tmp_path))
    monkeypatch.setattr("fedamp.data.places.INSTALLED", ())
    with pytest.raises(DataError, match=r"data\.name descriptions: not on this machine; expected: make data"):
        DescriptionsData(name="descriptions").load(0, tmp_path, FORM)


def test_texts_of_a_class_are_a_record_each(tmp_path):
    rows = [("ann", "good", 1), ("bob", "very bad", 0), ("ann", "", 1)]
    lines = [json.dumps({"author": author, "text": text, "liked": liked}) for author, text, liked in rows]
    for split in ("train", "test"):
        (tmp_path / f"{split}.json").write_text("\n".join(lines))
    dataset = text_data(tmp_path, label="liked", classes=2, length=6).load(0, tmp_path, Form(vocabulary=CHARACTERS))
    cohort = dataset.gather(np.array([0, 1]))
    assert (dataset.num_classes, cohort.sizes.tolist()) == (2, [2, 1])
    assert [spelled(row) for row in cohort.inputs[0]] == ["good##", "######"], "filled up with the token for the end"
    assert spelled(cohort.inputs[1, 0]) == "very b"
    assert cohort.labels[0].tolist() == [1, 1]
    with pytest.raises(DataError, match=r"no column 'stars'; data\.label must be one of"):
        text_data(tmp_path, label="stars").load(0, tmp_path, Form(vocabulary=CHARACTERS))
