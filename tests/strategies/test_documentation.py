"""The example of docs/flower-app/README.md is run as it stands there."""

from tests.documentation import python


def test_the_strategy_runs_in_a_custom_app(capsys):
    names: dict = {}
    exec(python("docs/flower-app/README.md"), names)
    told, strategy = names["result"].train_metrics_clientapp, names["strategy"]
    spent = strategy.plan.charge.epsilon_by_round.tolist()
    assert {round_: dict(found) for round_, found in told.items()} == {
        round_: {"epsilon": spent[round_ - 1]} for round_ in (1, 2, 3)
    }, "Flower logs these, and how many check in would tell who does"
    assert strategy.collected.reported == len(strategy.plan.attendance.cohort_of(3)) > 0
    accuracy, epsilon = map(float, capsys.readouterr().out.split()[-2:])
    assert 0 <= accuracy <= 1
    assert 0 < epsilon <= 2
    assert names["result"].arrays == strategy.arrays()
