"""NVFlare's simulator with its own FedAvg: a thread and a process for each client, as its recipe has them."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.protocol import Answer, Problem
from benchmarks.peers.torch_loop import accuracy, client_data, net, train

NAME = "NVFlare's FedAvg"
SOLVES = ("averaging",)
STARTS_PROCESSES = True


def release() -> str:
    return version("nvflare")


def client(folder: str) -> None:
    """The script of a client."""
    import nvflare.client as flare

    problem = Problem.load(Path(folder))
    model = net(problem.settings)
    flare.init()
    X, y = client_data(problem.arrays, int(flare.get_site_name().rpartition("-")[2]) - 1)
    while flare.is_running():
        came = flare.receive()
        model.load_state_dict(came.params)
        train(model, X, y, problem.settings)
        meta = {"NUM_STEPS_CURRENT_ROUND": len(y)}
        flare.send(flare.FLModel(params=model.state_dict(), meta=meta))


def fit(problem: Problem) -> Answer:
    import torch
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.client.config import ExchangeFormat
    from nvflare.recipe import SimEnv

    s = problem.settings
    with tempfile.TemporaryDirectory() as root:
        recipe = FedAvgRecipe(
            name="digits",
            model=net(s),
            min_clients=s["clients"],
            num_rounds=s["rounds"],
            train_script=__file__,
            train_args=problem.folder,
            server_expected_format=ExchangeFormat.PYTORCH,
        )
        run = recipe.execute(SimEnv(num_clients=s["clients"], num_threads=s["clients"], workspace_root=root))
        run.get_status()
        (kept,) = Path(root).rglob("FL_global_model.pt")
        model = net(s)
        model.load_state_dict(torch.load(kept)["model"])
    return Answer(accuracy(model, problem.arrays))


if __name__ == "__main__":
    client(sys.argv[1])
