"""PFLlib, which is no package: its checkout is where the variable PFLLIB says. It drops rows that fill no batch."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Answer, Problem
from benchmarks.peers.torch_loop import accuracy, net

NAME = "PFLlib"
SOLVES = ("averaging",)
NOT_NEEDED = ("h5py", "torchvision", "torchtext", "calmsize", "matplotlib", "matplotlib.pyplot")


def release() -> str:
    command = ["git", "-C", str(checkout()), "log", "-1", "--format=%h of %cs"]
    return f"commit {subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()}"


def checkout() -> Path:
    """The folder of PFLlib."""
    return Path(os.environ["PFLLIB"]).resolve()


def options(s: dict[str, Any]) -> Any:
    """PFLlib's own defaults, from its command, with this problem's settings."""
    source = (checkout() / "system" / "main.py").read_text()
    lines = source[source.index("    parser = argparse") : source.index("    args = parser.parse_args()")]
    made: dict[str, Any] = {"argparse": argparse}
    exec(textwrap.dedent(lines), made)  # noqa: S102
    rounds = {"-gr": s["rounds"] - 1, "-nc": s["clients"], "-lbs": s["batch"], "-lr": s["eta"], "-ls": 1, "-jr": 1}
    words = ["-data", "digits", "-dev", "cpu", *(str(word) for pair in rounds.items() for word in pair)]
    return made["parser"].parse_args(words)


def fit(problem: Problem) -> Answer:
    for name in NOT_NEEDED:  # imported there, and not used here
        stub = types.ModuleType(name)
        stub.__getattr__ = lambda name: None  # type: ignore[method-assign]
        sys.modules.setdefault(name, stub)
    system = str(checkout() / "system")
    sys.path.insert(0, system) if system not in sys.path else None
    from flcore.servers.serveravg import FedAvg

    s, a, here = problem.settings, problem.arrays, os.getcwd()
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        for part in ("train", "test"):
            folder = Path(root, "dataset", "digits", part)
            folder.mkdir(parents=True)
            for k in range(s["clients"]):
                own = a["client"] == k
                np.savez(folder / f"{k}.npz", data=np.array({"x": a["X"][own], "y": a["y"][own]}, dtype=object))
        os.mkdir(f"{root}/system")
        os.chdir(f"{root}/system")
        try:
            given = options(s)
            given.model = net(s)
            server = FedAvg(given, 0)
            server.evaluate = server.save_results = server.save_global_model = lambda: None
            server.rs_test_acc = [0.0]
            server.train()
        finally:
            os.chdir(here)
    return Answer(accuracy(server.global_model, a))
