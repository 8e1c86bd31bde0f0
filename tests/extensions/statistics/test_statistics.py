"""Questions about people: true without noise, covered with noise, bounded by person, charged and stored once."""

import copy
import dataclasses
import json
import math
from datetime import date
from decimal import Decimal

import numpy as np
import pytest

from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import InputError, ScenarioError
from fedamp.extensions.pages.release import release
from fedamp.extensions.population.store import Population
from fedamp.extensions.statistics.answers import FILE, released_answers
from fedamp.extensions.statistics.asked import ask_questions
from fedamp.extensions.statistics.questions import NoisySum
from fedamp.extensions.statistics.section import ARRAY
from fedamp.extensions.statistics.vectors import vectors_of
from fedamp.federation import reader
from fedamp.federation.losses import records_of
from fedamp.runs.records import LedgerRecord
from fedamp.runs.total import total
from fedamp.runs.verification import verify_ledger
from fedamp.server.loop import ask
from fedamp.server.setup import prepare
from tests.extensions.statistics.ward import COLUMNS, QUESTIONS, patients, scenario, truth, write_ward
from tests.federations import Silent
from tests.server.plays import Killed

PEOPLE = 1500
SECURE = "aggregation={scheme: secure, nodes: 6, dropped: 0.2, colluding: 0.2}"


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    rows = patients(PEOPLE)
    return write_ward(tmp_path_factory.mktemp("ward"), rows), rows


def answers_of(asked, sums, deviation) -> dict[str, dict]:
    """All numbers of all answers by name, from a noisy sum."""
    blocks = asked.noisy_blocks(sums, deviation)
    return {name: {each.name: each for each in question.answer_numbers(noisy)} for name, question, noisy in blocks}


def releases(asked: object, seeds: int):
    """Yield the noisy sum and its deviation for each seed: the people are asked once, and noise is drawn again."""
    prepared = prepare(asked)
    strategy = prepared.strategy(prepared.state)
    aggregate = ask(strategy, SerialGrid(CLIENT_APP, "cpu"), 1)
    for seed in range(seeds):
        plan = dataclasses.replace(prepared.plan, seed=seed, known_seed=True)
        pipeline = dataclasses.replace(strategy.pipeline, plan=plan)
        state, _ = pipeline.release(prepared.state, 1, copy.deepcopy(aggregate))
        deviation = plan.noise_deviations[0] * math.sqrt(1 + (aggregate.noise_surplus or 0))
        yield state.parameters[ARRAY].astype(float) * plan.units, deviation


def test_without_noise_every_number_is_that_of_plain_python(ward):
    folder, rows = ward
    asked = scenario(folder, None, "privacy.noise_multiplier=0")
    [(sums, deviation)] = releases(asked, 1)
    found = answers_of(asked.questions, sums, deviation)
    assert deviation == 0
    for name, numbers in truth(rows).items():
        for number, right in numbers.items():
            shown = found[name][number]
            # float32 vectors and models: seven digits of sums over all people; a quantile is known to its bin of 5
            near = 5.0 if name == "median" else 1e-4 * (1 + abs(right))
            assert shown.value == pytest.approx(right, abs=near), (name, number)
            assert shown.lower - near <= right <= shown.upper + near
    assert found["life"]["log-rank up to 40: p"].value == pytest.approx(logrank_p(rows), abs=1e-4)


def logrank_p(rows) -> float:
    """Oracle: Mantel's test over the intervals of the grid."""
    beyond = variance = 0.0
    for before, time in ((-1, 10), (10, 20), (20, 40)):
        risk = [row for row in rows if row[6] > before]
        events = [row for row in risk if row[6] <= time and row[7]]
        n, d, n1 = len(risk), len(events), sum(row[4] == "f" for row in risk)
        beyond += sum(row[4] == "f" for row in events) - d * n1 / n
        variance += d * (n1 / n) * (1 - n1 / n) * (n - d) / (n - 1)
    return math.erfc(abs(beyond) / math.sqrt(2 * variance))


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [(), (SECURE,)], ids=["plain", "secure"])
def test_an_interval_covers_its_number_as_often_as_it_says(ward, seeds, way):
    folder, rows = ward
    right, hits, shown = truth(rows), dict[tuple[str, str], int](), dict[str, list[bool]]()
    asked = scenario(folder, None, *way)
    for sums, deviation in releases(asked, seeds):
        found = answers_of(asked.questions, sums, deviation)
        for name, numbers in right.items():
            for number, value in numbers.items():
                each = found[name].get(number)
                if each is None:  # a curve that noise has ended
                    continue
                inside = each.lower <= value <= each.upper
                hits[name, number] = hits.get((name, number), 0) + inside
                shown.setdefault(name, []).append(inside)
    few = 0.95 * seeds - 4 * math.sqrt(seeds * 0.95 * 0.05)
    assert {key: hit for key, hit in hits.items() if hit < few} == {}
    if seeds == 200:
        # Counts are exact: over all seeds they are covered neither less nor more often (four deviations).
        for name in ("patients", "ages", "where"):
            room = 4 * math.sqrt(0.95 * 0.05 / len(shown[name]))
            assert np.mean(shown[name]) == pytest.approx(0.95, abs=room)


@pytest.mark.parametrize("seeds", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_a_number_that_noise_has_lifted_over_the_threshold_is_covered(ward, seeds):
    """Of 12 people nothing is shown but where noise is large: without its selection hardly any count was covered."""
    rows, draw, least, noise = patients(12), np.random.default_rng(7), 20, 3.0
    exact = truth(rows)
    kinds = {
        "patients": "count",
        "age": "mean",
        "spread": "variance",
        "pressure": "correlation",
        "median": "quantile 0.5",
    }
    asked = scenario(ward[0], {name: QUESTIONS[name] for name in kinds}, least=least).questions
    columns = {name: np.array([row[place] for row in rows], object) for place, name in enumerate(COLUMNS)} | {"": rows}
    for name, question, _ in asked.noisy_blocks(np.zeros(asked.number_of_cells), 0.0):
        hits, cells = [], np.zeros(question.number_of_cells)
        for places, values in question.record_parts(columns):
            np.add.at(cells, places[places >= 0], values[places >= 0])
        while len(hits) < seeds:
            sums = cells + draw.normal(0, noise, len(cells))
            if (sums.sum() if name == "median" else sums[0]) >= least:
                found = {each.name: each for each in question.answer_numbers(NoisySum(sums, noise, 0.05, least))}
                each, right = found[kinds[name]], exact[name][kinds[name]]
                hits.append(each.lower <= right <= each.upper)
        assert sum(hits) >= 0.95 * seeds - 4 * math.sqrt(seeds * 0.95 * 0.05), name


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_histogram_by_private_quantiles_covers_the_counts_between_them(ward, seeds):
    """Noise chooses the bins; each count is that of the people in the bins that were chosen."""
    asked = scenario(ward[0], {"parts": QUESTIONS["median"] | {"shares": [0.25, 0.5, 0.75], "histogram": True}})
    [(_, question, _)] = asked.questions.noisy_blocks(np.zeros(asked.questions.number_of_cells), 0.0)
    ages = np.array([row[1] for row in ward[1]])
    [(cells, values)] = question.record_parts({"age": ages.astype(object)})
    exact, draw, hits = np.bincount(cells, values, question.number_of_cells), np.random.default_rng(9), []
    for noise in [0.0] + [20.0] * seeds:
        sums = exact + draw.normal(0, noise, len(exact))
        found = [
            each for each in question.answer_numbers(NoisySum(sums, noise, 0.05, 0)) if each.name.endswith(": count")
        ]
        assert sum(each.value or 0 for each in found) == pytest.approx(sums.sum())
        for each in found:
            start, end = each.name.removesuffix(": count").split(" to ")
            inside = ages >= float(start.replace("lowest", "-inf"))
            right = np.count_nonzero(inside & (ages < float(end.replace("highest", "inf"))))
            hits.append(each.lower - 1e-9 <= right <= each.upper + 1e-9)
        assert noise or ([each.value for each in found] == pytest.approx([len(ages) / 4] * 4, rel=0.2) and all(hits))
    assert np.mean(hits) >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / len(hits))


HOSTILE = {
    "not numbers": [("nan", "inf", "-inf", "x", "", "nan", "nan", "nan")],
    "huge": [("1e308", "-1e308", "1e999", "9" * 400, "f", "a", "1e308", "1")],
    "years 0 and 9999": [("0000-01-01", "9999-12-31", "9999-99-99", "0000-00-00", "m", "b", "9999-12-31", "true")],
    "unknown words": [("5", "120", "80", "\u202ef", "a\x00", "zz" * 5000, "7", "2")],
    "many records": [("50", "120", "80", "f", "a", "10", "1")] * 2_000,
    "contradictions": [("-5", "0", "0", "f", "b", "-3", "1"), ("95", "999", "999", "m", "c", "0", "0")],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_person_changes_her_own_bounded_vector_alone(kind, tmp_path):
    rows = patients(30)
    hostile = [("p00007", *(record + ("",) * 7)[: len(COLUMNS) - 1]) for record in HOSTILE[kind]]
    others = [row for row in rows if row[0] != "p00007"]
    places = tmp_path / "clean", tmp_path / "hostile"
    write_ward(places[0], rows)
    write_ward(places[1], [*others[:3], *hostile, *others[3:]])
    found = []
    for place in places:
        asked = scenario(place)
        prepared = prepare(asked)
        vectors, lost = vectors_of(prepared.task, records_of(asked))(np.arange(30))
        assert not lost.any()
        assert np.isfinite(vectors).all()
        assert (np.linalg.norm(vectors.astype(float), axis=1) <= 1 + 1e-6).all()
        aggregate = ask(prepared.strategy(prepared.state), SerialGrid(CLIENT_APP, "cpu"), 1)
        assert (aggregate.reported, aggregate.failed) == (30, 0)
        found.append((vectors, aggregate.sums[ARRAY]))
    (clean, before), (changed, after) = found
    same = np.arange(30) != 7
    assert np.array_equal(clean[same], changed[same])
    assert np.linalg.norm(after - before) <= 2 + 1e-6  # zero-out: each of both vectors has a norm of at most 1


DAYS = ["NaT", "0000-01-01", "9999-12-31", "-5000-01-01", "290000-12-31"]
TYPED = {
    "float64": np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, -0.0, 5e-324]),
    "float32": np.array([np.nan, np.inf, 3e38, 1e-45], np.float32),
    "int64": np.array([-(2**63), 2**63 - 1, 0]),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "bool": np.array([True, False]),
    "days": np.array(DAYS, "datetime64[D]"),
    "nanoseconds": np.array(["NaT", "1677-09-22", "2262-04-11T23:47:16.854775807"], "datetime64[ns]"),
    "bytes": np.array([b"\xff\xfe", b"", b"f", b"1e308"]),
    "text": np.array(["", "nan", "\ud800", "\x00", "f" * 10**5, "1_000", "١٢", "0x1p4", "9" * 5000, "2024-02-30"]),
    "objects": np.array(
        [
            None,
            {"f": 1},
            [1, [2]],
            np.nan,
            b"\xff",
            10**400,
            -(10**400),
            Decimal("1e999"),
            Decimal("NaN"),
            date.min,
            date.max,
            1j,
            (1, 2),
        ],
        object,
    ),
}


@pytest.mark.parametrize("kind", TYPED)
def test_no_value_of_any_type_raises_an_error_or_exceeds_the_norm_of_a_record(kind, ward):
    values = TYPED[kind]
    asked = scenario(ward[0]).questions
    for name, question, _ in asked.noisy_blocks(np.zeros(asked.number_of_cells), 0.0):
        columns = dict.fromkeys(question.column_names, values)
        squares = np.zeros(len(values))
        for cells, numbers in question.record_parts(columns):
            assert ((cells >= -1) & (cells < question.number_of_cells)).all(), name
            assert np.isfinite(numbers).all(), name
            squares += np.where(cells >= 0, numbers, 0.0) ** 2
        assert (squares <= question.norm**2 + 1e-9).all(), name


@pytest.mark.slow
def test_a_million_records_of_a_person_count_as_she_does(tmp_path):
    rows = patients(30)
    others = [row for row in rows if row[0] != "p00007"]
    write_ward(tmp_path, [*others, *([("p00007", 50, 120, 80, "f", "a", 10, 1)] * 10**6)])
    asked = scenario(tmp_path)
    vectors, _ = vectors_of(prepare(asked).task, records_of(asked))(np.arange(30))
    assert (np.linalg.norm(vectors.astype(float), axis=1) <= 1 + 1e-6).all()


def test_records_count_up_to_the_number_that_is_asked_for(tmp_path):
    many = [("p0", 10, 1, 1, "f", "a", 1, 1)] * 5 + [("p1", 30, 1, 1, "f", "a", 1, 1)] * 2
    write_ward(tmp_path, many)
    questions = {"few": {"ask": "count"}, "more": {"ask": "count", "records": 3}}
    questions |= {"age": {"ask": "mean", "column": "age", "range": [0, 50], "records": 3}}
    asked = scenario(tmp_path, questions, "privacy.noise_multiplier=0", "privacy.delta=0.1")
    [(sums, _)] = releases(asked, 1)
    found = answers_of(asked.questions, sums, 0.0)
    assert found["few"]["count"].value == pytest.approx(2)
    assert found["more"]["count"].value == pytest.approx(3 + 2)
    assert found["age"]["mean"].value == pytest.approx((3 * 10 + 2 * 30) / 5, rel=1e-6)


def test_people_are_counted_where_no_question_reads_a_column(ward, tmp_path):
    """The column that names the people is enough."""
    answers, _ = ask_questions(scenario(ward[0], {"people": {"ask": "count"}}), tmp_path, Silent())
    [people] = answers.answer("people").numbers
    assert people.value == pytest.approx(PEOPLE, abs=6)  # six deviations of the noise


def test_suppression_follows_from_the_noised_count_alone(ward):
    asked = scenario(ward[0], None, least=60).questions
    sums = np.zeros(asked.number_of_cells)
    for _, _, place, factor in asked.vector_blocks():
        sums[place] = 61 * factor  # whatever the true counts are
    found = answers_of(asked, sums, 1.0)
    assert found["patients"]["count"].value is not None
    sums *= 59 / 61
    found = answers_of(asked, sums, 1.0)
    assert {each.value for name in ("patients", "age", "where") for each in found[name].values()} == {None}


def test_a_run_is_charged_once_verified_and_its_questions_are_not_answered_twice(ward, tmp_path):
    folder, store = ward[0], tmp_path / "store"
    two = {name: QUESTIONS[name] for name in ("patients", "age")}
    first, again = ask_questions(scenario(folder, two), store, Silent())
    run = store / "ward"
    assert again == []
    kept = json.loads((run / FILE).read_text())
    assert "above 90 counts as that end" in " ".join(kept["answers"][1]["caveats"])
    assert "is not covered" in first.covers
    assert str(LedgerRecord.read(run / "ledger.json").mechanism).count("Gaussian noise of multiplier 1)") == 1
    assert {check.verdict for check in verify_ledger(run)} == {"pass"}
    assert total([run])["fixed"]["upper"] == pytest.approx(first.epsilon_upper)
    # Less noise, another weight and another name: the same question gets the stored answer, at no cost.
    other = {"people": two["patients"] | {"weight": 5}, "women": QUESTIONS["women"]}
    second, again = ask_questions(scenario(folder, other, "privacy.noise_multiplier=0.5"), store, Silent())
    assert again == ["people"]
    assert second.answer("people").numbers == first.answer("patients").numbers
    assert sorted(each.name for each in store.iterdir() if each.is_dir()) == ["ward", "ward-2"]
    third, again = ask_questions(scenario(folder, two), store, Silent())
    assert (again, third.epsilon_upper) == (["patients", "age"], 0.0)
    assert third.answers == first.answers
    text = (run / FILE).read_text()
    value = released_answers(run).answer("patients").numbers[0].value
    (run / FILE).write_text(text.replace(repr(value), repr(value + 1)))
    assert [check.name for check in verify_ledger(run) if check.verdict == "fail"] == ["questions"]


@pytest.mark.slow
def test_other_records_are_another_question(tmp_path):
    rows, asked = patients(40), {"age": QUESTIONS["age"]}
    write_ward(tmp_path / "data", rows)
    for changed, stored in ((rows, False), (rows, True), ([(*rows[0][:1], 3, *rows[0][2:]), *rows[1:]], False)):
        write_ward(tmp_path / "data", changed)
        _, again = ask_questions(scenario(tmp_path / "data", asked), tmp_path / "store", Silent())
        assert (again == ["age"]) is stored


@pytest.mark.slow
@pytest.mark.parametrize("released", [False, True])
def test_a_killed_run_is_gone_on_with_and_charged_once(released, tmp_path):
    write_ward(tmp_path / "data", patients(40))
    asked, store = scenario(tmp_path / "data", {"age": QUESTIONS["age"]}), tmp_path / "store"

    class Kill(Silent):
        def round_done(self, record) -> None:
            raise Killed

        def started(self, prepared, finished) -> None:
            if not released:
                raise Killed

    with pytest.raises(Killed):
        ask_questions(asked, store, Kill())
    answers, again = ask_questions(asked, store, Silent())
    assert (again == ["age"]) is released
    assert answers.answer("age").number("mean").value is not None
    begun = [each for each in store.iterdir() if (each / "ledger.json").exists()]
    assert len(begun) == 1
    assert {check.verdict for check in verify_ledger(begun[0])} == {"pass"}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"ask": "cox"}, "divides by a sum over all people at risk"),
        ({"ask": "mean", "column": "age", "range": [5, 5]}, "range"),
        ({"ask": "table", "axes": [{"column": "age"}]}, "give bins or words"),
        ({"ask": "count", "words": ["f"]}, "give column and words"),
        ({"ask": "mode", "column": "age"}, "mode"),
    ],
)
def test_what_makes_no_sense_is_one_line(question, words, tmp_path):
    with pytest.raises(ScenarioError, match=words) as error:
        scenario(tmp_path, {"it": question})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"range": None}, "questions.ask.age.range: got None; expected: [a number, a number]"),
        ({"ask": "meen"}, "questions.ask.age: ask is 'meen'; expected: count, table"),
        ({"columm": "age"}, "questions.ask.age.columm: unknown key; did you mean column?"),
    ],
)
def test_what_is_wrong_in_a_question_is_named_by_its_path(tmp_path, changes, said):
    with pytest.raises(ScenarioError) as error:
        scenario(tmp_path, {"age": QUESTIONS["age"] | changes})
    assert said in str(error.value)


def test_a_question_under_two_names_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match="one and other are one question"):
        scenario(tmp_path, {"one": QUESTIONS["age"], "other": QUESTIONS["age"] | {"weight": 2}})


def test_a_missing_column_is_named_before_anything_is_asked(ward, tmp_path):
    asked = scenario(ward[0], {"size": {"ask": "mean", "column": "height", "range": [0, 3]}})
    with pytest.raises(InputError, match="height"):
        ask_questions(asked, tmp_path / "store", Silent())
    assert not (tmp_path / "store" / "asked.json").exists()


def test_questions_need_one_release_of_all(ward):
    with pytest.raises(ScenarioError, match="questions need rounds: 1"):
        scenario(ward[0], None, "rounds=2")
    means = "data.transform=[{name: standardise, mean: private, range: [0, 100], noise_multiplier: 20}]"
    with pytest.raises(ScenarioError, match="the only release of a run; expected: none by data"):
        scenario(ward[0], None, means)


@pytest.mark.slow
def test_people_of_a_population_pay_once_for_a_question(tmp_path):
    rows = patients(30)
    write_ward(tmp_path / "data", rows)
    file = tmp_path / "people.db"
    population = Population.new(file, [(row[0], row[0]) for row in rows], 5.0, 1e-5)
    asked = scenario(tmp_path / "data", {"age": QUESTIONS["age"]}, f"privacy.population={file}", "privacy.delta=1e-6")
    ask_questions(asked, tmp_path / "store", Silent())
    spent = population.read().spent()
    assert (spent > 0).all()
    ask_questions(asked, tmp_path / "store", Silent())
    assert np.array_equal(population.read().spent(), spent)
    assert {check.verdict for check in verify_ledger(tmp_path / "store" / "ward")} == {"pass"}


@pytest.mark.slow
def test_the_command_writes_answers_a_page_and_a_picture_and_reads_a_run(ward, tmp_path, fedamp):
    kept = json.loads(scenario(ward[0]).model_dump_json())
    kept = {key: kept[key] for key in ("name", "data", "privacy", "questions", "engine")}
    (tmp_path / "ward.yaml").write_text(json.dumps(kept))
    told = fedamp("statistics", str(tmp_path / "ward.yaml"), "--out", str(tmp_path / "out"), "--json")
    answers = json.loads(told.out)
    assert answers["asked_before"] == []
    page = (tmp_path / "out" / "ward.html").read_text()
    assert "survival at 10" in page
    assert "data:image/svg+xml" in page
    assert "no further cost" not in page
    assert (tmp_path / "out" / "plots" / "ward.png").stat().st_size > 1000
    again = json.loads(fedamp("statistics", str(tmp_path / "out" / "ward"), "--json").out)
    assert again["answers"] == answers["answers"]
    # The page and the certificate of the run have the answers, too.
    assert fedamp("report", str(tmp_path / "out" / "ward"), "--out", str(tmp_path / "run.html")).status == 0
    release(tmp_path / "out" / "ward", tmp_path / "bundle", tmp_path / "key.pem")
    [mean] = [each for each in released_answers(tmp_path / "out" / "ward").answer("age").numbers if each.name == "mean"]
    for made in ("run.html", "bundle/certificate.html"):
        assert f"<dt>age: mean</dt><dd>{mean.in_words}</dd>" in (tmp_path / made).read_text()
        assert "over the noise, and also among the results" in (tmp_path / made).read_text()
    whole = tmp_path / "whole.yaml"
    fedamp("statistics", str(tmp_path / "ward.yaml"), "--scenario", str(whole))
    assert reader.load(whole).questions == scenario(ward[0]).questions
