"""The server: fedamp's strategy, and around it whatever your app does."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save_file

from fedamp import rng
from fedamp.engines import flower
from fedamp.federation import reader
from fedamp.runs.ledger import Ledger
from fedamp.server.app import reasons_kept_in, wait_for_nodes
from fedamp.server.setup import prepare

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    scenario = reader.load(Path(__file__).with_name("federation.yaml"))
    prepared = prepare(scenario, rng.seed_from_system())  # a seed that anybody knew would give the noise away
    strategy = prepared.strategy(prepared.state)
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True)
    ledger = Ledger(out / "ledger.json", prepared.plan)

    def release(round_: int, arrays: ArrayRecord) -> MetricRecord:
        """What the server may do with a new model: all of it is covered by the epsilon that is charged here."""
        spent = ledger.enter(round_, strategy.state.parameters).epsilon_upper if round_ else 0.0
        found = prepared.evaluate(strategy.state.parameters)
        print(f"round {round_}: accuracy {found.score:.3f}, epsilon {spent:.3f}", flush=True)
        return MetricRecord({"loss": found.loss, **found.metrics, "epsilon": spent})

    rounds, log = prepared.plan.charge.affordable_rounds, out / "server.log"
    with flower.chatter_to(log, "fedamp"), reasons_kept_in(log, secret=True):  # they name nodes that were asked
        wait_for_nodes(grid, scenario)
        strategy.start(grid, strategy.arrays(), rounds, scenario.federation.round_deadline, evaluate_fn=release)
    save_file(strategy.state.parameters, out / "model.safetensors")
