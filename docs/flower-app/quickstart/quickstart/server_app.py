"""The server: starts from a model, averages, evaluates on a public test set, and saves what comes out."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    out = Path(str(config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), out / "final_model.pt")


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on the public test set."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_data(), torch.device("cpu"))
    print(f"round {server_round}: accuracy {accuracy:.3f}", flush=True)
    return MetricRecord({"accuracy": accuracy, "loss": loss})
