"""Run problems beside peers, in turns, and write docs/peers.md: ``python -m benchmarks.peers [problem ...]``.

What is not installed is skipped with a line. ``--python`` names other interpreters in which peers may be installed.
R's packages are looked for where R_LIBS_USER says, sources of pda and PFLlib where PDA and PFLLIB say. Problems that
are not named keep the figures that they had.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.page import PEERS, RESULTS, write
from benchmarks.peers.problems import PROBLEMS
from benchmarks.peers.protocol import ONE_THREAD, Problem

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600.0  # seconds of a fit


class Missing(Exception):
    """A peer that is not installed."""


class Worker:
    """A peer's process, which fits one problem when it is told to."""

    def __init__(self, peer: str, folder: Path, pythons: list[str], log: Any) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is started anew would be compiled anew
        for python in pythons:
            command = [python, "-W", "ignore", "-m", "benchmarks.peers.protocol", peer, str(folder)]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment, cwd=ROOT
            )
            if said := self.process.stdout.readline():
                self.release = json.loads(said)["release"]
                return
            self.process.wait()
        raise Missing(peer)

    def ask(self) -> dict[str, Any]:
        """One fit; RuntimeError where it fails, or takes longer than LIMIT."""
        stop = threading.Timer(LIMIT, self.process.kill)
        stop.start()
        try:
            self.process.stdin.write("fit\n")
            self.process.stdin.flush()
            if said := self.process.stdout.readline():
                return json.loads(said)
        finally:
            stop.cancel()
        raise RuntimeError(f"it ended with code {self.process.wait()}, and its log says why.")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def pair(ours: Worker, theirs: Worker, pairs: int, seconds: float) -> list[tuple[Any, Any]]:
    """Answers in turns; as many as there is time for, and one at least."""
    answers = []
    ours.ask()
    theirs.ask()
    start = time.monotonic()
    while len(answers) < pairs and (not answers or time.monotonic() - start < seconds):
        answers.append((ours.ask(), theirs.ask()))
    return answers


def compared(problem: Problem, peer: str, worker: Worker, answers: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Medians, their ratio, and whether both sides found the same."""
    ours, theirs = (answers[-1][side] for side in (0, 1))
    medians = [statistics.median(one[side]["seconds"] for one in answers) for side in (0, 1)]
    ratios = sorted(b["seconds"] / a["seconds"] for a, b in answers)
    gap = theirs["objective"] - ours["objective"]
    both = zip(ours["estimates"], theirs["estimates"], strict=True)
    apart = max((abs(a - b) / max(1.0, abs(a)) for a, b in both), default=None)
    allowed = problem.agree.get("objective", problem.agree.get("relative", 0.0) * abs(ours["objective"]))
    agrees = abs(gap) <= allowed and (apart is None or apart <= problem.agree["estimates"])
    return {
        "peer": peer,
        "release": worker.release,
        "ours": digits(medians[0]),
        "theirs": digits(medians[1]),
        "ratio": digits(medians[1] / medians[0]),
        "range": [digits(ratios[0]), digits(ratios[-1])],
        "pairs": len(answers),
        "objective": [ours["objective"], theirs["objective"]],
        "apart": None if apart is None else digits(apart, 2),
        "agrees": agrees,
    }


def commit() -> str:
    """That of this tree, in short."""
    said = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def digits(value: float, most: int = 4) -> float:
    """A number to so many digits."""
    return float(f"{value:.{most}g}")


def beside(name: str, given: argparse.Namespace, root: Path, log: Any) -> dict[str, Any]:
    """One problem beside all its peers."""
    problem = PROBLEMS[name]()
    folder, rows, missing = problem.save(root), [], []
    ours = Worker("ours", folder, [sys.executable], log)
    for peer in PEERS:
        module = import_module(f"benchmarks.peers.{peer}")
        if name not in module.SOLVES:
            continue
        try:
            theirs = Worker(peer, folder, [sys.executable, *given.python], log)
        except Missing:
            missing.append(peer)
            print(f"{name}: {module.NAME} is not installed and is skipped", flush=True)
            continue
        try:
            rows.append(compared(problem, peer, theirs, pair(ours, theirs, given.pairs, given.seconds)))
            print(f"{name}: {module.NAME} {rows[-1]['ratio']:.2f}, agrees: {rows[-1]['agrees']}", flush=True)
        except (RuntimeError, OSError) as problem_of_peer:
            missing.append(peer)
            print(f"{name}: {module.NAME} is skipped: {problem_of_peer}", flush=True)
        theirs.close()
    ours.close()
    about = {"what": problem.what, "objective": problem.objective, "agree": problem.agree}
    return about | {"rows": rows, "missing": missing, "load": round(os.getloadavg()[0], 1), "commit": commit()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("problems", nargs="*", choices=[[], *PROBLEMS], metavar="problem", help=", ".join(PROBLEMS))
    parser.add_argument(
        "--python", action="append", default=[], help="another interpreter in which peers are installed"
    )
    parser.add_argument("--pairs", type=int, default=5, help="fits of either side (default 5)")
    parser.add_argument("--seconds", type=float, default=20.0, help="no further pair after so long (default 20)")
    parser.add_argument("--log", default=os.devnull, help="where peers' own words go")
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"problems": {}}
    with tempfile.TemporaryDirectory() as root, open(given.log, "w") as log:
        for name in given.problems or PROBLEMS:
            results["problems"][name] = beside(name, given, Path(root), log)
            results |= {
                "date": datetime.date.today().isoformat(),
                "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
                "coterie": import_module("coterie").__version__,
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write()


if __name__ == "__main__":
    main()
