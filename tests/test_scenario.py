"""Scenarios: what is accepted, and that every mistake gets one line that names file, key and accepted values."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedamp.errors import ScenarioError
from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.runs.ledger import fingerprint

DIGITS = reader.SHIPPED / "digits.yaml"
CONTRACT = """
name: digits
seed: 7
data: {name: digits, clients: 479, partition: {scheme: iid}}
model: {name: mlp, hidden: [64]}
rounds: 100
check_in: {scheme: balanced, k: 10}
submodels: {scheme: disjoint, count: 3, shared: [output]}
client: {steps: 5, batch_size: full, learning_rate: 0.5}
server: {optimizer: sgd, learning_rate: 0.3, momentum: 0.9}
privacy: {unit: client, clip: 0.5, noise_multiplier: auto, epsilon: 8, delta: 1.0e-5}
engine: {kind: ray, workers: auto, device: auto}
"""


def message_of(*overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        reader.load(DIGITS, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_example_of_the_contract_is_accepted():
    scenario = reader.validate_scenario(yaml.safe_load(CONTRACT), "example")
    assert scenario.check_in.k == 10
    assert scenario.submodels.shared == ("output",)


def test_a_start_is_beside_the_scenario_or_known_by_name(tmp_path, monkeypatch):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(CONTRACT) | {"model": {"name": "mlp", "initial": "minilm"}}))
    monkeypatch.setenv("FEDAMP_DATA", str(tmp_path / "data"))
    for place in (tmp_path / "data" / "minilm", tmp_path / "minilm"):
        place.mkdir(parents=True)
        assert reader.load(file).model.initial == str(place)


def test_keys_of_older_runs_are_read_at_their_defaults_and_named_otherwise():
    old = {"seed": 3, "failing": 0.1, "late": 0.0, "repeating": 0.0, "vanishing": None, "killed_workers": 0.0}
    read = reader.validate_scenario(yaml.safe_load(CONTRACT) | {"faults": old}, "old")
    assert read.faults.model_dump_json() == json.dumps(old, separators=(",", ":"))  # which the fingerprint counts
    assert "faults: repeating was removed; expected: 0; " in message_of("faults.repeating=0.5")
    assert not {"repeating", "vanishing", "late"} & reader.json_schema()["$defs"]["Faults"]["properties"].keys()
    adam = {"client.beta1": 0.9, "client.epsilon": 1e-8, "server.beta2": 0.99, "server.epsilon": 0.001}
    assert reader.load(DIGITS, changes=adam).server == reader.load(DIGITS).server
    assert "client: beta1 was removed; expected: 0.9" in message_of("client.beta1=0.5")
    change = "submodels={scheme: dropout, layers: [hidden.0]}"
    assert f"{change}: layers was removed; expected: " in message_of(change)
    clip = "privacy.clip={initial: 0.1, quantile: %s, learning_rate: 0.2}"
    assert reader.load(DIGITS, [clip % 0.5]).privacy.clip.initial == 0.1
    with pytest.warns(UserWarning, match=r"engine\.kind: flower was removed; .*flwr run"):
        assert reader.load(DIGITS, ["engine.kind=flower"]).engine.kind == "auto"
    with pytest.warns(UserWarning, match=r"aggregation\.simulate: protocol was removed"):
        secure = reader.load(DIGITS, ["aggregation={scheme: secure, simulate: protocol}"]).aggregation
    assert secure.model_dump()["simulate"] == "protocol"  # which the fingerprint counts


def test_relative_paths_start_where_the_file_lies_also_behind_a_link(tmp_path: Path):
    (tmp_path / "project" / "records").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    content = yaml.safe_load(CONTRACT) | {"data": {"name": "npz", "path": "records", "clients": 3, "classes": 2}}
    (tmp_path / "project" / "own.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "links" / "here.yaml").symlink_to("../project/own.yaml")
    (tmp_path / "links" / "folder").symlink_to("../project")
    for file in ("project/own.yaml", "links/here.yaml", "links/folder/own.yaml"):
        assert reader.load(tmp_path / file).data.path == str((tmp_path / "project" / "records").resolve())


def test_every_shipped_scenario_is_valid_and_survives_a_round_trip(tmp_path: Path, subtests: pytest.Subtests):
    for file in reader.shipped_files():
        with subtests.test(file.stem):
            scenario = reader.load(file)
            assert scenario.name == file.stem
            assert len(scenario.description) > 80
            copy = tmp_path / "copy.yaml"
            copy.write_text(scenario.to_yaml())
            assert reader.load(copy) == scenario


WRONG = [
    ("privacy.clip=-1", "privacy.clip", "a number > 0"),
    ("privacy.clip=.inf", "privacy.clip", "a number > 0"),
    ("privacy.clpi=1", "privacy.clpi", "did you mean clip?"),
    ("privacy.delta=0", "privacy.delta", "> 0 and < 1"),
    ("privacy.epsilon=0", "privacy.epsilon", "a number > 0"),
    ("privacy.epsilon=null", "privacy", "needs a budget"),
    ("privacy.unit=person", "privacy.unit", "client, sample"),
    ("privacy.noise_multiplier=foo", "privacy.noise_multiplier", "auto or 0 or a number >= 1e-06"),
    ("privacy.group_size=0", "privacy.group_size", "an integer >= 1"),
    ("rounds=0", "rounds", "an integer >= 1"),
    ("rounds=true", "rounds", "an integer >= 1"),
    ("rounds=5", "check_in.k", "at most rounds (5)"),
    ("roundz=5", "roundz", "did you mean rounds?"),
    ("check_in.k=101", "check_in.k", "at most rounds (100)"),
    ("check_in.scheme=balance", "check_in", "did you mean balanced?"),
    ("check_in={k: 3}", "check_in", "scheme"),
    ("check_in={scheme: poisson, rate: 2}", "check_in.rate", "> 0 and <= 1"),
    ("check_in={scheme: poisson, k: 2}", "check_in.k", "unknown key"),
    ("check_in=all", "check_in", "a section"),
    ("data.name=svhn", "data", "shakespeare, synthetic, npz"),
    ("data.clients=0", "data.clients", "an integer >= 1"),
    ("data.clients=null", "data.clients", "the number of clients"),
    ("data.test_fraction=1", "data.test_fraction", ">= 0 and < 1"),
    ("data.partition.scheme=dirchlet", "data.partition", "did you mean dirichlet?"),
    ("data.partition={scheme: dirichlet, alpha: -1}", "data.partition.alpha", "a number > 0"),
    ("data.partition={scheme: natural}", "data.clients", "left out"),
    ("model=5", "model", "a section"),
    ("model={}", "model.name", "missing"),
    ("model.hidden=[0]", "model.hidden", "an integer >= 1"),
    ("model.hidden=64", "model.hidden", "a list"),
    ("model.hiden=[64]", "model.hiden", "did you mean hidden?"),
    ("client.steps=0", "client.steps", "an integer >= 1"),
    ("client.epochs=3", "client", "steps or epochs, not both"),
    ("client.batch_size=all", "client.batch_size", "an integer >= 1 or full"),
    ("privacy.clip=1e300", "privacy.clip", "got 1e+300; expected: at most 1e+50"),
    ("data.clients=10000000000000000000000", "data.clients", "an integer >= 1 and <= 1e+08"),
    ("privacy.group_size=1001", "privacy.group_size", "an integer >= 1 and <= 1000"),
    ("client.learning_rate=0", "client.learning_rate", "a number > 0"),
    ("server.optimizer=adamw", "server.optimizer", "sgd, adam"),
    ("server.momentum=1", "server.momentum", ">= 0 and < 1"),
    ("submodels={scheme: disjoint, count: 1}", "submodels.count", "an integer >= 2"),
    ("submodels={scheme: disjoint, count: 2, shard: [x]}", "submodels.shard", "did you mean shared?"),
    ("submodels={scheme: dropout, keep: 1}", "submodels.keep", "> 0 and < 1"),
    ("mixing={width: 0}", "mixing.width", "a number > 0"),
    ("engine.kind=gpu", "engine.kind", "auto, ray, serial"),
    ("engine.workers=0", "engine.workers", "an integer >= 1 and <= 10000 or auto"),
    ("engine.device=tpu", "engine.device", "auto|cpu|cuda"),
    ("federation.quorum=2", "federation.quorum", ">= 0 and <= 1"),
    ("name=two words", "name", "text matching"),
    ("seed=-1", "seed", "an integer >= 0"),
    ("name.x=1", "name", "not a section"),
    ("a.b.c=1", "a", "unknown key"),
    ("rounds", "--set rounds", "key.path=value"),
    ("=5", "--set", "key.path=value"),
    ("rounds=[1", "--set rounds=[1", "cannot be read; expected: a number, text"),
]


def test_a_word_of_a_command_line_is_taken_to_the_letter(subtests):
    """YAML has comments, anchors, tags, and blanks that it drops; a command line has not."""
    letters = (
        "a #b",
        "#b",
        " a ",
        "&x a",
        "!!str 5",
        "a: b",
        "- a",
        "no",
        "a\nb",
        "a\tb",
        "1:30",
        "012",
        "--- a",
        "%a",
    )
    refused = ("[a, b #c]", "{a: b} #c", "[&x a]", "[*x]", "[!!str a]", "'a' #b", "'a' b", "[a\nb]", "{a: 'x\n y'}")
    for word in letters:
        with subtests.test(word):
            assert reader.load("digits", [f"description={word}"]).description == word
    for word in refused:
        with subtests.test(word), pytest.raises(ScenarioError, match=r"--set .*: cannot be read; expected: a number"):
            reader.load("digits", [f"model.options={word}"])
    read = reader.load("digits", ["rounds= 60 ", "model.options={a: 'b #c', d: no}", "engine.address=null"])
    assert (read.rounds, read.model.options, read.engine.address) == (60, {"a": "b #c", "d": "no"}, None)


def test_a_description_that_no_longer_holds_is_dropped(tmp_path):
    shipped = reader.load("digits").description
    for override, kept in {
        "seed=3": shipped,
        "engine.kind=serial": shipped,
        "rounds=10": "",
        "check_in.k=3": "",
    }.items():
        assert reader.load("digits", [override]).description == kept
        key, _, value = override.partition("=")
        changes = {key: int(value) if value.isdigit() else value}
        assert reader.load("digits", changes=changes).description == kept
    assert reader.load("digits", ["rounds=10", "description=ten"]).description == "ten"


def test_a_wrong_value_is_refused_with_its_key_and_what_is_accepted(subtests):
    for override, key, accepted in WRONG:
        with subtests.test(override):
            message = message_of(override)
            assert key in message
            assert accepted in message
            assert "digits.yaml" in message or message.startswith("--set")


def test_the_sample_unit_takes_one_step():
    assert "a unit contributes one gradient a round" in message_of("privacy.unit=sample")
    assert reader.load(DIGITS, ["privacy.unit=sample", "client.steps=1"]).privacy.unit == "sample"


def test_several_mistakes_are_counted_and_an_unknown_key_comes_first():
    message = message_of("privacy.clpi=1", "privacy.clip=-1", "rounds=0")
    assert "clpi" in message
    assert message.endswith("(and 2 more)")


FILES = {
    "empty.yaml": (b"", "a mapping"),
    "list.yaml": (b"- 1\n- 2\n", "a mapping"),
    "text.yaml": (b"hello", "a mapping"),
    "broken.yaml": (b"a: [1,\nb: {", "not valid YAML"),
    "tab.yaml": (b"a:\n\t- 1", "not valid YAML"),
    "twice.yaml": (b"name: a\nname: b\n", "is duplicated"),
    "number.yaml": (b"1: 2\n", "not text"),
    "two.yaml": (b"name: a\n---\nname: b\n", "line 2: not valid YAML: a second document begins; a scenario is one"),
    "merge.yaml": (b"c: &c {steps: 2}\nclient:\n  <<: *c\n", "line 3: not valid YAML: << merges mappings"),
    "kinds.yaml": (
        b"name: a\ndata: [digits]\nmodel: {name: mlp}\nrounds: 1\nprivacy: {clip: 1, noise_multiplier: 1}\n",
        "line 2: data: got ['digits']; expected: a section with name diabetes, digits, ",
    ),
    "lr.yaml": (b"name: a\nlr: 3\n", "line 2: lr: unknown key; did you mean client.learning_rate or server.learning"),
    "binary.yaml": (b"\xff\xfe\x00\x01", "not a text file"),
    "python.yaml": (b"a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
    "date.yaml": (b"name: 2020-13-45\n", "date.yaml"),
}


def test_a_file_that_is_no_scenario_is_refused_in_one_line(tmp_path, subtests):
    for name in FILES:
        with subtests.test(name):
            content, expected = FILES[name]
            file = tmp_path / name
            file.write_bytes(content)
            with pytest.raises(ScenarioError) as caught:
                reader.load(file)
            assert expected in str(caught.value)
            assert name in str(caught.value)
            assert "\n" not in str(caught.value)


MEANT = {
    "client.lr=1": "learning_rate",
    "lr=1": "client.learning_rate or server.learning_rate",
    "noise=1": "privacy.noise_multiplier or evaluation.noise_multiplier",
    "clip=1": "privacy.clip",
    "client.clip=1": "privacy.clip",
    "rouns=1": "rounds",
}


def test_a_key_that_others_call_otherwise_or_of_another_section_is_suggested(subtests):
    for override, expected in MEANT.items():
        with subtests.test(override):
            assert f"--set {override}: unknown key; did you mean {expected}? " in message_of(override)


def test_a_wrong_value_is_found_by_its_line(tmp_path):
    file = tmp_path / "deep.yaml"
    lines = [*DIGITS.read_text().splitlines(), "client:", "  # how long", "  steps: 2", "  batch_size: none"]
    file.write_text("\n".join(line for line in lines if not line.startswith("client: {")))
    with pytest.raises(ScenarioError, match=rf"deep\.yaml, line {len(lines) - 1}: client\.batch_size: got 'none'"):
        reader.load(file)
    with pytest.raises(ScenarioError, match=r"deep\.yaml, line \d+: model\.name: missing; expected: text"):
        reader.load(file, ["client=null", "model={}"])


def test_a_pipe_is_read_as_a_shell_gives_it():
    reading, writing = os.pipe()
    with open(reading), open(writing, "w") as stream:
        stream.write(DIGITS.read_text())  # less than a pipe holds
        stream.close()
        assert reader.load(f"/dev/fd/{reading}") == reader.load(DIGITS)


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ScenarioError, match="pipe: no file; expected: a YAML file"):
        reader.load(tmp_path / "pipe")


def test_the_json_schema_accepts_the_shipped_scenarios_and_refuses_what_we_refuse():
    schema = reader.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    raw = yaml.safe_load(DIGITS.read_text())
    assert validator.is_valid(raw)
    assert not validator.is_valid(raw | {"roundz": 1})
    assert not validator.is_valid(raw | {"rounds": 0})
    json.dumps(schema, allow_nan=False)


def key_paths(section: dict, prefix: str = "") -> list[str]:
    found = []
    for key, value in section.items():
        found.append(prefix + key)
        if isinstance(value, dict):
            found += key_paths(value, f"{prefix}{key}.")
    return found


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(key_paths(Scenario.model_validate(yaml.safe_load(CONTRACT)).model_dump())), JUNK)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_no_value_anywhere_ever_gives_a_traceback(path, junk):
    raw = yaml.safe_load(CONTRACT)
    section = raw
    for key in path.split(".")[:-1]:
        section = section.setdefault(key, {})
    section[path.split(".")[-1]] = junk
    message = "fuzzed"
    try:
        reader.validate_scenario(raw, "fuzzed")
    except ScenarioError as error:
        message = str(error)
    assert "\n" not in message
    assert message.startswith("fuzzed")


@pytest.mark.parametrize(
    "value",
    [
        "client.weight_decay=yes",
        "client.weight_decay=true",
        "rounds=1:30",
        "rounds=010",
        "known_seed=yes",
        "known_seed=1",
    ],
)
def test_a_truth_is_no_number_and_a_number_no_truth(value: str) -> None:
    with pytest.raises(ScenarioError, match=value.partition("=")[0]):
        reader.load("digits", [value])


def test_no_is_text_and_true_a_choice() -> None:
    assert reader.load("digits", ["name=no"]).name == "no"
    assert reader.load("digits", ["known_seed=true"]).known_seed is True


def test_renamed_keys_are_read_and_keep_the_fingerprint():
    """The digest was written before, with the old words."""
    before = ["submodels={scheme: disjoint, count: 3, rest: dealt, choice: ordered}", "engine.precision=tf32"]
    now = ["submodels={scheme: disjoint, count: 3, unowned: partitioned, assignment: static}", "client.precision=tf32"]
    read = [reader.load("disjoint-3", changes) for changes in (before, now)]
    assert read[0] == read[1] == reader.load(read[0].model_dump(mode="json"))
    assert fingerprint(read[0]) == "b9fcbe41de93843434656e4eb7517819d604a3bce8d5f4063b38b16fcdfd79cf"
