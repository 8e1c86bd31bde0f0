"""Secure aggregation with the real strategy and the real client app: sums, noise, dropouts, and refusals."""

import json
import math
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.stats import beta, chi, kstest

from fedamp.base.files import write_secret
from fedamp.engines import flower
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DeploymentError, FederationError, RunFolderError, ScenarioError
from fedamp.extensions.deployment.doctor import examine_node
from fedamp.extensions.secure.participant import (
    Agreement,
    NodeMemory,
    Participant,
    grid_of_words,
    join,
    new_memory,
    sums_of,
    words_of,
)
from fedamp.extensions.secure.protocol import MemberKeys
from fedamp.extensions.secure.secure_sums import honest_norm
from fedamp.federation.check_in import BalancedCheckIn
from fedamp.runs.folder import RunFolder
from fedamp.runs.verification import verify_ledger
from fedamp.server.loop import ask, play
from fedamp.server.setup import prepare
from tests.extensions.secure.consortium import (
    FIVE,
    PLAIN_NOISE,
    SECURE,
    Consortium,
    change_data,
    data_of,
    living,
    plain,
)
from tests.federations import Silent, small
from tests.orders import order_in
from tests.server.plays import ledger_of, rounds_of

MLP = "model={name: mlp, hidden: [12]}"
NODE = "check_in={scheme: balanced, k: 3, drawn_by: node}"


def assert_same_model(one, other):
    for name, array in one.state.parameters.items():
        np.testing.assert_array_equal(array, other.state.parameters[name])


@pytest.mark.few(0)
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (MLP, "submodels={scheme: disjoint, count: 3}"),
        (MLP, "submodels={scheme: dropout, keep: 0.5}"),
        ("check_in={scheme: poisson, rate: 0.4}",),
    ],
    ids=["whole", "disjoint", "dropout", "poisson"],
)
def test_without_noise_the_model_is_the_plain_one_to_the_bit(tmp_path, overrides):
    secure = Consortium(tmp_path, PLAIN_NOISE, *overrides).play(rounds=2)
    assert_same_model(secure, plain(PLAIN_NOISE, *overrides, rounds=2))


@pytest.mark.few(0, 1, 2, 4, 6, 8)
@pytest.mark.parametrize("exchange", ["keys", "shares", "masked", "agree", "unmask"])
@pytest.mark.parametrize("how", ["dropped", "spoiled"])
def test_a_node_that_fails_in_an_exchange_costs_its_own_sum_alone(tmp_path, exchange, how):
    if (exchange, how) == ("masked", "spoiled"):
        pytest.skip("any words of the right length are a sum: see the threat model")
    consortium = Consortium(tmp_path, PLAIN_NOISE, "check_in={scheme: all}")
    getattr(consortium, how)[exchange] = ["site1"]
    away = () if exchange in ("agree", "unmask") or (exchange, how) == ("shares", "spoiled") else (1,)
    if (exchange, how) == ("shares", "spoiled"):  # it has dealt nothing, so nobody can take its mask away
        with pytest.raises(FederationError, match="site1"):
            consortium.play()
        assert consortium.strategy.state.round == 0
        return
    assert_same_model(consortium.play(), plain(PLAIN_NOISE, "check_in={scheme: all}", away=away))


def test_below_the_threshold_nothing_is_released_and_the_round_can_be_played_again(tmp_path):
    consortium = Consortium(tmp_path, PLAIN_NOISE)
    consortium.dropped["masked"] = ["site0", "site3"]
    with pytest.raises(FederationError, match="secure aggregation: 3 nodes sent their sums; expected: at least 4"):
        consortium.play()
    assert consortium.strategy.state.round == 0
    consortium.dropped.clear()
    assert_same_model(consortium.play(), plain(PLAIN_NOISE))


def test_the_server_sees_no_sum_of_a_node(tmp_path):
    consortium = Consortium(tmp_path, "check_in={scheme: all}", PLAIN_NOISE)
    consortium.play()
    masked = [np.frombuffer(data, np.uint64) for exchange, _, data in consortium.seen if exchange == "masked"]
    assert len(masked) == 5
    for words in masked:  # uniform: a mean of 650 of them has a deviation of 2**64 / sqrt(12 * 650)
        assert abs(words.mean() / 2.0**64 - 0.5) < 6 / math.sqrt(12 * len(words))
        assert np.unique(words).size == words.size  # a sum of zeros would show


def test_the_nodes_shares_of_noise_have_the_variance_that_is_told(tmp_path):
    consortium = Consortium(tmp_path, "rounds=2", "check_in={scheme: balanced, k: 1}", "privacy.noise_multiplier=2.0")
    terms, size = consortium.prepared.task.terms, 40_000
    zeros = {"a": np.zeros((2, size))}
    total = sum(words_of(zeros, 0.0, {"a": 2.0}, {"a": 0.5}, terms, seed).astype(np.uint64) for seed in range(5))
    sums, _ = sums_of(total.astype(f"u{terms.bits // 8}"), {"a": (2, size)}, {"a": 2.0}, {"a": 0.5}, terms)
    # Five shares, of which three honest ones have together the deviation 2 * 0.5 that is charged.
    assert terms.honest == 3
    normal = kstest(sums["a"].ravel() / math.sqrt(5 / 3), "norm")
    assert normal.pvalue > 1e-6  # seeds are fixed; a variance wrong by a tenth gives 1e-60
    assert (sums["a"] / grid_of_words(0.5, 2.0, terms) % 1 == 0).all()


@pytest.mark.parametrize(("deviation", "nodes"), [(1.0, 2), (1.3, 3), (0.8, 4)])
def test_a_sum_of_rounded_shares_is_one_rounded_gaussian_with_uniform_numbers(deviation, nodes):
    """Lemma 1 of docs/research/secure-aggregation.md, with deviations so small that its bound can be seen."""
    from scipy.special import ndtr

    values = np.linspace(-0.4, 0.37, nodes)
    whole = np.arange(-40, 41)
    law = np.ones(1)
    for value in values:
        law = np.convolve(law, np.diff(ndtr((np.append(whole, 41) - 0.5 - value) / deviation)))
    # One Gaussian of all variances plus (nodes - 1) uniforms, rounded: its law by quadrature over the uniforms.
    fine, step = 2000, 1 / 2000
    uniform = np.ones(1) / step
    for _ in range(nodes - 1):
        uniform = np.convolve(uniform, np.full(fine, step))
    offsets = (np.arange(len(uniform)) - (len(uniform) - 1) / 2) * step
    at = np.arange(-40 * nodes, 40 * nodes + 1)
    spread = deviation * math.sqrt(nodes)
    edges = np.append(at, at[-1] + 1) - 0.5 - values.sum()
    expected = np.diff((ndtr((edges[:, None] - offsets) / spread) * (uniform * step)).sum(1))
    bound = 6 * nodes * math.exp(-((math.pi * deviation) ** 2) / 2)
    assert np.abs(law - expected).max() <= bound + 1e-6  # of the quadrature
    assert np.abs(law - expected).max() > 0


def test_more_survivors_than_assumed_make_the_noise_larger_and_the_round_says_so(tmp_path):
    consortium = Consortium(tmp_path)
    assert ask(consortium.strategy, consortium, 1).noise_surplus == pytest.approx(2 / 3)


def test_an_adaptive_norm_follows_a_count_with_the_nodes_noise(tmp_path):
    clip = "privacy.clip={initial: 0.01, quantile: 0.5, noise_multiplier: 0.1}"
    consortium = Consortium(tmp_path, clip, "check_in={scheme: all}")
    aggregate = ask(consortium.strategy, consortium, 1)
    # All 20 updates are longer than 0.01: minus one half each, with five shares of noise, of which three are charged.
    assert 0 < abs(aggregate.noisy_count + 10) < 8 * 0.1 * math.sqrt(5 / 3)
    consortium.strategy.release(1, aggregate)
    assert consortium.strategy.state.clip_scale == pytest.approx(
        math.exp(0.1), rel=0.02
    )  # exp(0.2 * 0.5) without noise


# What a server can try.


@pytest.fixture
def played(tmp_path):
    """A round up to the masked sums, so that nodes can still be asked for anything."""
    consortium = Consortium(tmp_path)
    consortium.dropped["masked"] = list(FIVE)
    with pytest.raises(FederationError):
        consortium.play()
    return consortium


def changed(message, **keys):
    """A message to a node with other values in its order, or in what an exchange tells."""
    order = order_in(message)
    own = {key: keys.pop(key) for key in list(keys) if key in {each.name for each in fields(order)} - {"exchange"}}
    if keys.get("exchange") == "unmask":
        own["answer_bytes"] = 66 * 5
    return flower.with_content(message, replace(order, exchange=dict(order.exchange) | keys, **own).content())


def signature(consortium, name, survivors):
    """What a node signs."""
    message = changed(to(consortium, "shares", name), exchange="agree", data=survivors, answer_bytes=121)
    assert consortium.ask_node(name, message) == ""
    return consortium.seen_last


def to(consortium, exchange, name):
    return next(m for m in consortium.told[exchange] if consortium.names[m.metadata.dst_node_id] == name)


def test_a_round_is_unmasked_once(played):
    everybody, fewer = bytes([0b11111000]), bytes([0b11110000])
    signed = [signature(played, name, everybody) for name in FIVE]
    told = to(played, "shares", "site0")
    assert "other survivors" in played.ask_node("site0", changed(told, exchange="agree", data=fewer))
    first = changed(told, exchange="unmask", survivors=everybody)
    first = changed(first, data=b"".join(signed), numbers=list(range(5)))
    few = changed(first, data=b"".join(signed[:3]) + signed[2], numbers=[0, 1, 2, -3])
    assert "3 nodes have signed the survivors; expected: at least 4" in played.ask_node("site0", few)
    assert played.ask_node("site0", first) == ""
    assert played.ask_node("site0", first) == ""  # the same question has the same answer
    assert "other survivors" in played.ask_node("site0", changed(first, survivors=fewer))
    before = round_file(played).read_bytes()
    assert played.ask_node("site0", to(played, "keys", "site0")) == ""
    assert MemberKeys.read(played.seen_last).last == 1
    assert round_file(played).read_bytes() == before  # it enters no attempt with these keys
    memory = next((played.folder / "site0" / "state").glob("*.json"))
    assert NodeMemory.from_json(memory.read_bytes()).signed == 1
    assert memory.stat().st_mode & 0o077 == 0


def test_a_node_without_its_memory_stays_out(tmp_path):
    consortium = Consortium(tmp_path, PLAIN_NOISE, "check_in={scheme: all}")
    next((tmp_path / "site2" / "state").glob("*.json")).unlink()
    assert_same_model(consortium.play(), plain(PLAIN_NOISE, "check_in={scheme: all}", away=(2,)))
    assert any("no state for this run" in error for error in consortium.strategy.collected.errors)


@pytest.mark.parametrize(
    ("exchange", "told", "why"),
    [
        ("keys", {"round": 9}, "round 9 is none of the 8"),
        ("keys", {"task": ""}, ""),
        ("shares", {"data": b"\0\0\0\1a"}, "dealt its shares already"),
        ("shares", {"attempt": bytes(16)}, "another attempt"),
        ("shares", {"clips": (5.0,)}, "another attempt"),
        ("masked", {"clips": (50.0,)}, "another attempt"),
        ("masked", {"round": 2}, "another attempt"),
        ("shares", {"exchange": "unmask", "survivors": bytes([0b11000000])}, "survivors; expected: at least 4"),
        ("shares", {"exchange": "unmask", "survivors": bytes([0b01111000])}, "not among the survivors"),
        ("shares", {"exchange": "everything"}, "no exchange"),
    ],
)
def test_a_node_refuses_what_was_not_agreed(played, exchange, told, why):
    refused = played.ask_node("site0", changed(to(played, exchange, "site0"), **told))
    assert refused
    assert why in refused


@pytest.mark.parametrize(
    ("units", "why"),
    [([1, 1], "a unit twice"), ([7], "[7] are not among")],
    ids=["a unit twice", "another node's unit"],
)
def test_a_node_refuses_an_order_that_would_cost_more(played, units, why):
    order = changed(to(played, "masked", "site0"), rows=rows(units, [bytes(32)] * len(units)))
    # The node has answered this attempt already: another one, for the changed order.
    assert "masked words already" in played.ask_node("site0", order)
    keys = changed(to(played, "keys", "site0"), attempt=bytes(16), question=order_in(order).digest)
    assert played.ask_node("site0", keys) == ""
    assert why in played.ask_node("site0", changed(order, attempt=bytes(16)))


# A node's files, put back or found later.


def round_file(consortium, name="site0"):
    return next((consortium.folder / name / "state").glob("*.round"))


def test_a_rounds_file_put_back_answers_no_second_question(tmp_path):
    """The server asks a round up to the masked sums; the file of before is put back, and it asks again."""
    consortium, kept = Consortium(tmp_path), {}
    send = consortium.send_and_receive

    def keep(messages, *, timeout=None):
        if messages and messages[0].metadata.message_type == "train":
            kept["round"] = round_file(consortium).read_bytes()
        return send(messages, timeout=timeout)

    consortium.send_and_receive = keep
    consortium.dropped["masked"] = list(FIVE)
    with pytest.raises(FederationError):
        consortium.play()
    order, file = to(consortium, "masked", "site0"), round_file(consortium)
    other = changed(order, arrays={name: array + 1 for name, array in order_in(order).arrays.items()})
    memory = file.with_suffix(".json")
    for question, forgotten, why in (
        (order, False, "masked words already"),
        (other, False, "masked words already"),
        (other, True, "not the one for which"),  # also if all of the folder was put back
    ):
        file.write_bytes(kept["round"])
        if forgotten:
            found = NodeMemory.from_json(memory.read_bytes())
            memory.write_text(found.model_copy(update={"masked": ""}).to_json())
        assert why in consortium.ask_node("site0", question)
    # The same question has the same answer, with the same noise: nothing more is learnt.
    before, answers = memory.read_bytes(), set()
    for _ in range(2):
        file.write_bytes(kept["round"])
        memory.write_bytes(before)
        assert consortium.ask_node("site0", order) == ""
        answers.add(consortium.seen_last)
    assert len(answers) == 1


def test_a_rounds_file_put_back_signs_no_second_set(played):
    """Two signed sets would open both secrets of a node."""
    everybody, fewer = bytes([0b11111000]), bytes([0b11110000])
    before = round_file(played).read_bytes()
    signature(played, "site0", everybody)
    round_file(played).write_bytes(before)
    told = to(played, "shares", "site0")
    assert "other survivors" in played.ask_node("site0", changed(told, exchange="agree", data=fewer))
    first = changed(told, exchange="unmask", survivors=fewer)
    assert "other survivors" in played.ask_node("site0", first)
    signature(played, "site0", everybody)


def test_a_node_whose_memory_was_put_back_stays_out_and_others_refuse_it(tmp_path):
    consortium = Consortium(tmp_path, PLAIN_NOISE, "check_in={scheme: all}")
    memory = next((tmp_path / "site1" / "state").glob("*.json"))
    before = memory.read_bytes()
    consortium.play()
    memory.write_bytes(before)
    strategy = consortium.play()
    assert any(
        "site1: DeploymentError: this node has no record of a round" in error for error in strategy.collected.errors
    )
    assert strategy.collected.noisy_nodes == 4
    # A server that lies, or has started again, says nothing: the other nodes have seen it sign.
    memory.write_bytes(before)
    strategy.pipeline.aggregator._signed_last.clear()
    with pytest.raises(FederationError, match="member site1 has no record of a round that it signed"):
        consortium.play()


def test_what_a_file_of_secrets_held_is_overwritten(tmp_path):
    file = tmp_path / "secret"
    write_secret(file, "a secret of before")
    with file.open("rb") as before:
        write_secret(file, "another")
        assert set(before.read()) == {0}
    assert file.read_text() == "another"
    assert file.stat().st_mode & 0o077 == 0


def test_a_unit_takes_part_in_no_more_rounds_than_agreed(tmp_path):
    consortium = Consortium(tmp_path, "check_in={scheme: balanced, k: 1}")
    file = next((tmp_path / "site0" / "state").glob("*.json"))
    memory = NodeMemory.from_json(file.read_bytes())
    file.write_text(memory.model_copy(update={"check_ins": {str(unit): (7,) for unit in range(4)}}).to_json())
    refused, expected = [], []
    for round_ in range(1, 9):
        consortium.play()
        errors = consortium.strategy.collected.errors
        refused.append(any("site0" in error and "more than 1 rounds" in error for error in errors))
        expected.append(round_ != 7 and bool({0, 1, 2, 3} & set(consortium.prepared.plan.attendance.cohort_of(round_))))
    assert any(expected)
    assert refused == expected


def test_a_node_with_other_units_than_before_stays_out(tmp_path):
    consortium = Consortium(tmp_path, NODE, PLAIN_NOISE)
    consortium.play()
    [node] = [node for node, name in consortium.names.items() if name == "site0"]
    consortium.contexts[node].node_config["hosts"] = "0-2"
    consortium.play()
    assert any(
        "site0: DeploymentError: this node's units or record owners changed" in error
        for error in consortium.strategy.collected.errors
    )


def test_other_terms_or_another_task_are_refused(tmp_path):
    asked = ("data={name: digits, clients: 20}", SECURE.replace("}", ", nodes: 5}"), "privacy.noise_multiplier=0.1")
    weaker = prepare(small(*asked)).task.terms
    consortium = Consortium(tmp_path, "federation.round_deadline=5", terms=weaker)
    with pytest.raises(FederationError, match="not those of this node's agreement"):
        consortium.play()


@pytest.mark.parametrize(
    ("evaluation", "changed"),
    [
        ("{on: clients, noise_multiplier: 20, every: 1}", {"evaluation_noise": 0.0}),
        ("{on: clients, noise_multiplier: 20}", {"evaluation_noise": 0.0}),
        ("{on: clients, noise_multiplier: 20, every: 1}", {"evaluated_at_end": True}),  # charged once
        ("null", {"evaluation_noise": 20.0, "evaluated_at_end": True}),
    ],
)
def test_a_node_evaluates_with_the_noise_and_as_often_as_its_terms_say(tmp_path, evaluation, changed):
    """The server has written the agreement: what the terms leave out, a node's own budget would not charge."""
    asked = (*living(FIVE), SECURE, f"evaluation={evaluation}")
    terms = prepare(small(*asked)).task.terms.model_copy(update=changed)
    consortium = Consortium(tmp_path, "federation.round_deadline=5", f"evaluation={evaluation}", terms=terms)
    prepared = replace(consortium.prepared, task=consortium.prepared.task.model_copy(update={"terms": terms}))
    consortium.strategy = prepared.strategy(prepared.state)
    with pytest.raises(FederationError, match="the task has a side sum in other rounds, or with other noise"):
        consortium.play()
    assert not consortium.seen


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw["peers"].update(dict.fromkeys(raw["peers"], raw["peers"]["site0"])), "one key"),
        (lambda raw: raw["peers"].update(site1=raw["peers"]["site0"] + " a comment"), "something beside it"),
        (
            lambda raw: raw["peers"].update(site1=raw["peers"]["site1"] + "\n" + raw["peers"]["site0"]),
            "something beside it",
        ),
        (lambda raw: raw["peers"].update(site1=raw["peers"]["site1"] + "\r\n"), "something beside it"),
        (lambda raw: raw["peers"].update(SITE0=raw["peers"].pop("site1")), "one name"),
        (lambda raw: raw["peers"].update({"\0": raw["peers"].pop("site1")}), "should match pattern"),
        (lambda raw: raw["peers"].pop("site4"), "names 4 nodes, and its terms are for 5"),
        (lambda raw: raw["terms"].update(noise_multipliers=[0.0]), "noise multiplier is 0"),
        (lambda raw: raw["terms"].update(noise_multipliers=[]), "no noise multiplier"),
        (lambda raw: raw["terms"].update(noise_multipliers=[-1.0]), "noise_multipliers.0"),
        (lambda raw: raw["terms"].update(most_check_ins=99), "more check-ins of a unit than rounds"),
        (lambda raw: raw["terms"].update(dropped=2, colluding=1), "more nodes than colluding ones"),
        (lambda raw: raw["terms"].update(dropped=-1), "terms.dropped"),
        (lambda raw: raw.update(task=""), "no task"),
        *[
            (lambda raw, run=run: raw.update(run=run), "run: String should match pattern")
            for run in ("", "../../etc", "a/b", "a\0", ".", "a\n", " a", "a" * 101, "\x1b[2J")
        ],
        *[
            (lambda raw, name=name: raw["peers"].update({name: raw["peers"].pop("site1")}), "should match pattern")
            for name in ("", "..", "../site1", "site1\n", "a b", "a" * 64)
        ],
        *[
            (lambda raw, key=key, value=value: raw["terms"].update({key: value}), f"terms.{key}")
            for key in ("nodes", "units", "rounds", "dropped", "colluding", "most_check_ins", "count_noise")
            for value in (10**60, -(10**30))
        ],
        (lambda raw: raw["terms"].update(noise_multipliers=[1.0] * 3), "terms.noise_multipliers"),
        (lambda raw: raw["terms"].update(noise_multipliers=[1e300]), "terms.noise_multipliers.0"),
    ],
)
def test_no_node_agrees_to_terms_that_protect_nobody(tmp_path, change, why):
    """Neither before the run, nor where the memory of a run is given the file later."""
    Consortium(tmp_path)
    own = tmp_path / "site0"
    raw = json.loads((own / "agreement.json").read_text())
    change(raw)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(raw))
    with pytest.raises((DeploymentError, RunFolderError), match=why):
        join(file, tmp_path / "state")
    assert not (tmp_path / "state").exists()
    with suppress(RunFolderError):  # a memory from before the check
        memory = new_memory(Agreement.read(file))
        (own / "state" / f"{memory.agreement[:16]}.json").write_text(memory.to_json())
    with pytest.raises(DeploymentError, match=why):
        Participant.read(file, own / "key", own / "state")


def test_the_doctor_shows_what_a_node_agrees_to_and_compares_its_memory(tmp_path):
    consortium = Consortium(tmp_path)
    own = tmp_path / "site0"
    files = own / "agreement.json", own / "key", own / "state"
    shown = {check.name: (check.verdict, check.found) for check in examine_node(*files)}
    assert shown["nodes"] == ("pass", "5: 1 may drop out of a round, 1 may collude")
    assert shown["task"] == ("pass", consortium.agreement.task)
    [file] = (own / "state").glob("*.json")
    memory = NodeMemory.from_json(file.read_bytes())
    file.write_text(memory.model_copy(update={"agreement": memory.agreement[:16] + 48 * "0"}).to_json())
    [check] = examine_node(*files)
    assert "the memory of another agreement" in check.found


def test_a_node_with_an_agreement_gives_nobody_its_sum(tmp_path):
    consortium = Consortium(tmp_path)
    consortium.play()
    order = replace(order_in(message := to(consortium, "masked", "site0")), exchange={}, answer_bytes=0)
    message = flower.with_content(message, order.content())
    assert "secure aggregation alone" in consortium.ask_node("site0", message)


# What a node can try.


def adds_to_each_word(consortium, name, number, rounds=(1,)):
    """A node adds a number to each word of its sum."""
    send = consortium.send_and_receive

    def changed_replies(messages, *, timeout=None):
        replies = send(messages, timeout=timeout)
        asked = {message.metadata.dst_node_id: message for message in messages}
        for reply in replies if messages and messages[0].metadata.message_type == "train" else ():
            if consortium.names[reply.metadata.src_node_id] == name and consortium.strategy.state.round + 1 in rounds:
                kind = f"<u{consortium.prepared.task.terms.bits // 8}"
                message = asked[reply.metadata.src_node_id]
                words = np.frombuffer(data_of(reply, message), kind) + np.array(number, kind)
                change_data(reply, message, words.tobytes())
        return replies

    consortium.send_and_receive = changed_replies


@pytest.mark.few(0, 1, 5)
@pytest.mark.parametrize("overrides", [(), (NODE,), (MLP, "submodels={scheme: disjoint, count: 3}")])
@pytest.mark.parametrize("noise", ["privacy.noise_multiplier=0", "privacy.noise_multiplier=1"])
def test_a_sum_that_honest_nodes_cannot_reach_is_spent_and_not_released(tmp_path, overrides, noise):
    consortium = Consortium(tmp_path, noise, *overrides)
    before = consortium.strategy.state.parameters
    adds_to_each_word(consortium, "site1", 2**20 if noise[-1] == "1" else 2**40)
    aggregate = ask(consortium.strategy, consortium, 1)
    consortium.strategy.release(1, aggregate)
    assert "a node is faulty or malicious" in aggregate.impossible
    for name, array in consortium.strategy.state.parameters.items():
        np.testing.assert_array_equal(array, before[name])
    assert ask(consortium.strategy, consortium, 2).impossible == ""  # honest nodes go on


def test_an_impossible_sum_is_charged_and_the_run_goes_on_without_the_suspect(tmp_path):
    consortium = Consortium(tmp_path, "rounds=3", "check_in={scheme: all}")
    adds_to_each_word(consortium, "site1", 2**20)
    (tmp_path / "run").mkdir()
    folder, prepared = RunFolder(tmp_path / "run"), consortium.prepared
    with pytest.raises(FederationError, match=r"round 1: the sum has a norm of .* faulty or malicious"):
        play(prepared, consortium, folder, Silent())
    [entry] = ledger_of(folder.path)["releases"]
    assert entry["epsilon_upper"] == prepared.plan.charge.epsilon_by_round[0]
    [line] = rounds_of(folder.path)
    assert line["impossible_sum"]
    scenario = prepared.plan.scenario
    federation = scenario.federation.model_copy(update={"without": ("site1",)})
    plan = replace(prepared.plan, scenario=scenario.model_copy(update={"federation": federation}))
    for exchange in consortium.told.values():
        exchange.clear()
    play(prepared.with_plan(plan), consortium, folder, Silent())
    assert [line["round"] for line in rounds_of(folder.path)] == [1, 2, 3]
    assert [line.get("impossible_sum", False) for line in rounds_of(folder.path)] == [True, False, False]
    asked = {consortium.names[m.metadata.dst_node_id] for m in consortium.told["keys"]}
    assert asked == set(FIVE) - {"site1"}


@pytest.mark.parametrize("size", [1, 2, 30, 1000, 10**6])
def test_honest_noise_exceeds_the_bound_less_often_than_is_said(size):
    """The norm of Gaussian noise has the law chi; rounding is at most half a grid a node and coordinate."""
    terms = prepare(small("data={name: digits, clients: 20}", SECURE)).task.terms
    deviation, nodes = 0.7, terms.nodes
    bound = honest_norm(0.0, deviation, size, nodes, terms, 1e-9)
    total = deviation * math.sqrt(nodes / terms.honest)
    assert chi.isf(1e-9, size) * total < bound < 1.6 * chi.isf(1e-9, size) * total
    assert honest_norm(5.0, deviation, size, nodes, terms, 1e-9) == pytest.approx(bound + 5)


# Check-ins that nodes draw.


def test_nodes_draw_check_ins_and_the_server_learns_none(tmp_path):
    consortium = Consortium(tmp_path, NODE, PLAIN_NOISE)
    consortium.play(rounds=8)
    orders = [order_in(message) for message in consortium.told["masked"]]
    assert len(orders) == 5 * 8
    assert all(order.ids == [] for order in orders)
    assert len({len(data) for exchange, _, data in consortium.seen if exchange == "masked"}) == 1
    moved = consortium.strategy.state.parameters["output.bias"]
    assert np.abs(moved).max() > 0


def test_a_schedule_of_a_node_is_that_of_the_scheme(tmp_path):
    """Each unit checks in to k rounds, and not to the same ones at every node."""
    from fedamp.extensions.secure.participant import Participant, _scheduled_order

    consortium = Consortium(tmp_path, NODE, PLAIN_NOISE)
    schedules = []
    for name, hosts in FIVE.items():
        own = tmp_path / name
        participant = Participant.read(own / "agreement.json", own / "key", own / "state")
        first, last = map(int, hosts.split("-"))
        rounds = []
        for round_ in range(1, 9):
            told = RoundOrder(consortium.prepared.task.to_json(), round_, (0.5,))
            drawn = _scheduled_order(told, participant, set(range(first, last + 1)))
            assert drawn.ids == list(range(first, last + 1))  # all train: the time tells nothing
            rounds.append(drawn.rows["counted"])
        assert (np.sum(rounds, 0) == 3).all()
        schedules.append(np.array(rounds).tobytes())
    assert len(set(schedules)) == 5


# The second column.


def test_the_servers_epsilon_is_without_amplification_unless_nodes_draw():
    asked = ("rounds=20", "data={name: digits, clients: 20}", "check_in={scheme: balanced, k: 3}")
    for_server = prepare(small(*asked, SECURE)).plan
    for_nobody = prepare(small(*asked)).plan
    hidden = prepare(small(*asked[:2], NODE, SECURE)).plan
    assert for_nobody.charge.server_epsilon is None
    assert for_server.charge.server_epsilon.upper == pytest.approx(for_server.charge.unamplified_epsilon.upper)
    assert for_server.charge.server_epsilon.lower > 1.2 * for_server.charge.planned_epsilon.upper
    assert hidden.charge.server_epsilon == hidden.charge.planned_epsilon
    assert isinstance(hidden.check_in, BalancedCheckIn)


def test_shares_with_which_no_round_would_be_secure_are_refused():
    with pytest.raises(ScenarioError, match="more nodes than colluding ones"):
        prepare(small("aggregation={scheme: secure, dropped: 0.4, colluding: 0.4}"))


# An audit that plays the server.


def test_the_server_guesses_a_canary_no_better_than_its_epsilon(tmp_path):
    """One round, in which everybody takes part. The server knows the canary's update, and guesses if it is in the sum.

    The best test of a Gaussian mechanism is the sum along the update. Its errors bound epsilon from below (Kairouz, Oh,
    Viswanath 2015: TPR <= e^epsilon FPR + delta), at a confidence of 1 - 1e-6 by Clopper and Pearson 1934.
    """
    games = 150
    noise = "privacy.noise_multiplier=0.6"
    hosts = {f"site{number}": str(number) for number in range(3)}
    aggregation = "aggregation={scheme: secure, dropped: 0.0, colluding: 0.0}"
    asked = ("rounds=1", "check_in={scheme: all}", "privacy.delta=0.01", noise, aggregation)
    consortium = Consortium(tmp_path, *asked, hosts=hosts)
    terms, plan = consortium.prepared.task.terms, consortium.prepared.plan
    bare = plain("rounds=1", "check_in={scheme: all}", PLAIN_NOISE, hosts=hosts, away=(1, 2))
    canary = np.concatenate([array.ravel() for array in bare.collected.sums.values()])
    canary /= np.linalg.norm(canary)
    zeros = {name: np.zeros(shape) for name, shape in bare.pipeline.model.shapes.items()}
    present = dict(bare.collected.sums)
    clips, multipliers = dict.fromkeys(zeros, 0.5), dict.fromkeys(zeros, terms.noise_multipliers[0])

    def seen(sums, seed: int) -> float:
        """What the server computes from the sum of all words."""
        words = [words_of(sums, 0.0, multipliers, clips, terms, 3 * seed)]
        words += [words_of(zeros, 0.0, multipliers, clips, terms, 3 * seed + other) for other in (1, 2)]
        total = np.sum(words, axis=0, dtype=words[0].dtype)
        found, _ = sums_of(total, bare.pipeline.model.shapes, multipliers, clips, terms)
        return float(np.concatenate([array.ravel() for array in found.values()]) @ canary)

    inside = np.array([seen(present, seed) for seed in range(games)])
    outside = np.array([seen(zeros, games + seed) for seed in range(games)])
    middle = 0.25
    true, false = (inside > middle).mean(), (outside > middle).mean()
    least_true = beta.ppf(1e-6, true * games, games - true * games + 1)
    most_false = beta.ppf(1 - 1e-6, false * games + 1, games - false * games)
    epsilon = math.log(max(least_true - 0.01, 1e-9) / most_false)
    assert 0.2 < epsilon < plan.charge.server_epsilon.upper  # the attack works, and stays below
    # With plain aggregation the same test of what the server gets from the node is right in every game.
    [alone] = [np.concatenate([array.ravel() for array in present.values()])]
    assert alone @ canary > middle > np.zeros_like(alone) @ canary


@pytest.mark.slow
def test_a_hundred_nodes_of_one_client_each_play_the_protocol(tmp_path):
    hosts = {f"site{number}": str(number) for number in range(100)}
    consortium = Consortium(tmp_path, PLAIN_NOISE, hosts=hosts)
    assert not consortium.prepared.task.terms.settings.is_complete
    consortium.dropped = {"keys": ["site7"], "shares": ["site9"], "masked": ["site11"], "agree": ["site13"]}
    strategy = consortium.play()
    assert strategy.collected.noisy_nodes == 97


def test_the_server_may_know_the_agreement(tmp_path):
    """The key costs nothing, and no scenario with it is refused."""
    (tmp_path / "agreement.json").write_text("{}")
    told = small("data={name: digits, clients: 20}", SECURE, "federation.agreement=agreement.json")
    assert told.federation.agreement == "agreement.json"


def test_a_round_that_ends_after_its_signatures_is_lost_and_the_run_goes_on(tmp_path):
    """Its nodes sign no other set of survivors, so nobody can learn a sum of it any more."""
    consortium = Consortium(tmp_path, PLAIN_NOISE, "check_in={scheme: all}")
    consortium.dropped = {"unmask": list(FIVE)}
    with pytest.raises(FederationError, match="helped to unmask"):
        consortium.play()
    consortium.dropped = {}
    before = consortium.strategy.state.parameters
    lost = consortium.play()
    assert lost.state.round == 1
    assert all(np.array_equal(array, before[name]) for name, array in lost.state.parameters.items())
    found = lost.collected
    assert (found.noisy_nodes, found.missing_nodes, found.noise_surplus) == (0, 5, None)
    assert consortium.play().collected.noisy_nodes == 5
    # A run folder that is older than that is no reason for zeros: those rounds have been released.
    consortium.strategy = consortium.prepared.strategy(consortium.prepared.state)
    with pytest.raises(FederationError, match=r"0 nodes sent keys.*has signed the survivors of round 2 already"):
        consortium.play()


def test_a_last_evaluation_that_is_lost_is_charged_and_the_run_ends_without_it(tmp_path):
    evaluation = "evaluation={on: clients, noise_multiplier: 20}"
    consortium = Consortium(tmp_path, "rounds=1", PLAIN_NOISE, "check_in={scheme: all}", evaluation)
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")

    class Loses(Silent):
        def round_done(self, record):
            consortium.dropped = {"unmask": list(FIVE)}

    with pytest.raises(FederationError, match="helped to unmask"):
        play(consortium.prepared, consortium, folder, Loses())
    consortium.dropped = {}
    assert play(consortium.prepared, consortium, folder, Silent()).stopped_because == "finished"
    verdicts = {check.name: (check.verdict, check.found) for check in verify_ledger(folder.path)}
    assert verdicts["evaluation"] == ("caution", "charged, and 0 released")
    assert "fail" not in dict(verdicts.values())
