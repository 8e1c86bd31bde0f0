"""The example of docs/strategies.md is run as it stands there."""

from tests.documentation import python


def test_the_strategy_runs_in_a_custom_app(capsys):
    names: dict = {}
    exec(python("docs/strategies.md"), names)
    assert sorted(names["result"].train_metrics_clientapp) == [1, 2, 3]
    trained = sum(metrics["reported"] for metrics in names["result"].train_metrics_clientapp.values())
    assert trained == 2000  # everybody once
    accuracy, epsilon = map(float, capsys.readouterr().out.split())
    assert 0 <= accuracy <= 1
    assert 0 < epsilon <= 2
    assert names["result"].arrays == names["strategy"].arrays()
