"""Flower's simulation with its own FedAvg: one process of Ray beside the server, clients one after another."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Answer, Problem
from benchmarks.peers.torch_loop import accuracy, client_data, net, train

NAME = "Flower's simulation"
SOLVES = ("averaging",)
STARTS_PROCESSES = True


def release() -> str:
    return f"{version('flwr')} with Ray {version('ray')}"


def client(folder: str) -> Any:
    """The app of a client: an epoch on the model that came."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def epoch(message: Message, context: Context) -> Message:
        problem = Problem.load(Path(folder))
        model = net(problem.settings)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        X, y = client_data(problem.arrays, int(context.node_config["partition-id"]))
        train(model, X, y, problem.settings)
        said = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(said), reply_to=message)

    return app


def fit(problem: Problem) -> Answer:
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    s, found = problem.settings, {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=s["clients"])
        result = strategy.start(grid, ArrayRecord(net(s).state_dict()), num_rounds=s["rounds"])
        model = net(s)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        found["accuracy"] = accuracy(model, problem.arrays)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    ray = {"init_args": {"num_cpus": 1, "include_dashboard": False}}
    run_simulation(app, client(problem.folder), s["clients"], backend_config=resources | ray)
    return Answer(found["accuracy"])
