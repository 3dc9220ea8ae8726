"""Four hospitals whose rows stay where they are: one process each, on this machine, over TLS.

The UCI heart tables (see ``coterie data show heart``) are cut into the four hospitals they came from. Each becomes
a site of a federation; a coordinator fits the exact hierarchical logistic model and Async-L2GD over them, and both are
compared with the same fits where all rows are in one place. Every step is a command that an operator would type.

    python examples/hospitals.py --engine nvflare --folder build/hospitals
"""

from __future__ import annotations

import argparse
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

import coterie
from coterie.data.datasets import fetch
from coterie.errors import CoterieError
from coterie.files import local
from coterie.results.fit_result import FitResult

FORMULA = "disease ~ age + sex + cp + oldpeak + exang"
MODEL = ["--formula", FORMULA, "--family", "binomial", "--missing", "drop"]
ENDS = 10  # lines that are shown of the begin and of the end of what a command prints
STEPS = 3000  # of Async-L2GD: with these seeds, a few hundred exchanges


def main() -> int:
    """Run the example over one engine; 0 if the models agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=["nvflare", "flower"], default="nvflare")
    parser.add_argument("--folder", default="build/hospitals")
    parser.add_argument("--steps", type=int, default=STEPS, help="of Async-L2GD; 0 leaves it out")
    parser.add_argument("--looks", type=int, default=50, help="how often Async-L2GD stops to measure its gap")
    parser.add_argument("--splits", type=int, help="for the evidence of the exact fit; 1 by default over NVFlare")
    parser.add_argument("--secure", action="store_true", help="sums that are seen over all hospitals only")
    given = parser.parse_args()
    try:
        given.folder = local(given.folder)
    except CoterieError as problem:
        parser.error(str(problem))
    splits = given.splits if given.splits is not None else int(given.engine == "nvflare" and not given.secure)
    folder = given.folder / (f"{given.engine}-secure" if given.secure else given.engine)
    table = hospitals()
    tables = write(table, given.folder / "tables")
    sites = list(tables)
    if not (folder / "federation.toml").exists():
        command("federation", "schema", given.folder / "tables" / "all.csv", "--out", given.folder / "schema.toml")
        command("federation", "init", folder, "--engine", given.engine, "--name", "heart", "--port", free_port(),
                "--schema", given.folder / "schema.toml", *["--secure"] * given.secure,
                "--disclosure", "min_level=1", "--disclosure", "works=coterie.*",  # these rows are public
                *(part for name in sites for part in ("--site", name, "--data", f"{name}={tables[name]}")))  # fmt: skip
        if given.secure:
            command("federation", "identity", folder)
    started = time.perf_counter()
    try:
        command("federation", "start-coordinator", folder)
        for name in sites:
            command("federation", "start-site", folder, "--site", name)
        command("federation", "check", folder)
        command("federation", "preview", folder / "sites" / sites[0], "--method", "hierarchical", *MODEL,
                "--covariance", "isotropic", "--splits", splits)  # fmt: skip
        sound = exact(folder, table, started, splits)
        model = folder / "coordinator" / "runs" / "exact" / "result"
        command("predict", model, tables["hungary"], "--client", "hungary", "--missing", "empty",
                "--interval", "0.9", "--out", folder / "predictions.csv", "--force")  # fmt: skip
        if given.steps:
            sound &= rounds(folder, table, {"steps": given.steps, "looks": given.looks})
        command("federation", "status", folder)
        command("federation", "log", folder / "sites" / sites[0], "--last", "3")
    finally:
        for name in sites:
            with suppress(subprocess.CalledProcessError):
                command("federation", "stop", folder / "sites" / name)
        with suppress(subprocess.CalledProcessError):
            command("federation", "stop", folder)
    return 0 if sound else 1


def exact(folder: Path, table: pd.DataFrame, started: float, splits: int) -> bool:
    """The exact fit over the sites, and its evidence, against those of one table."""
    options = ["--covariance", "isotropic", "--splits", splits, "--name", "exact"]
    seconds = command("fit", folder, "--method", "hierarchical", *MODEL, *options)
    there = coterie.load(folder / "coordinator" / "runs" / "exact" / "result")
    here = coterie.fit(table, FORMULA, client="hospital", family="binomial", method="hierarchical", splits=splits,
                       covariance="isotropic", missing="drop")  # fmt: skip
    print(f"\nLog odds of disease at each hospital ({there.ledger['exchanges']} exchanges, {seconds:.1f} s, "
          f"{time.perf_counter() - started:.1f} s with the start):\n")  # fmt: skip
    print(there.client_coefficients.round(3).to_string())
    return agree(there, here) and (not splits or evidence(there, here))


def evidence(there: FitResult, here: FitResult) -> bool:
    """Whether held-out losses are the same to 1e-10, and how the model compares."""
    print(f"\n{there.reason}\n{there.notes[-1]}\n")
    print(there.client_gains.round(3).to_string())
    losses = there.comparison["loss_clients"]
    gap = float(np.max(np.abs(losses / here.comparison["loss_clients"][losses.index] - 1.0)))
    print(f"Largest relative difference of held-out losses from all rows in one place: {gap:.1e}")
    return gap < 1e-10


def rounds(folder: Path, table: pd.DataFrame, options: dict[str, int]) -> bool:
    """Async-L2GD over the sites against that in one process."""
    asked = [part for name, value in options.items() for part in ("--rounds", f"{name}={value}")]
    asked += ["--gamma", "1.0", "--seed", "0"]
    seconds = command("fit", folder, "--method", "async-l2gd", *MODEL, *asked, "--name", "rounds")
    there = coterie.load(folder / "coordinator" / "runs" / "rounds" / "result")
    here = coterie.fit(table, FORMULA, client="hospital", family="binomial", method="async-l2gd", splits=0,
                       missing="drop", gamma=1.0, rounds={"seed": 0, **options})  # fmt: skip
    print(f"\nAsync-L2GD: {there.ledger['exchanges']} exchanges in {seconds:.1f} s.")
    return agree(there, here)


def agree(there: FitResult, here: FitResult) -> bool:
    """Whether two models are the same to 1e-10, and a line that says so."""
    gap = float(np.max(np.abs(there.model.client / here.model.client - 1.0)))
    print(f"Largest relative difference from all rows in one place: {gap:.1e}")
    return gap < 1e-10


def hospitals() -> pd.DataFrame:
    """The table, each hospital under a name that a site can have."""
    table = fetch("heart")
    return table.assign(hospital=table["hospital"].str.lower().str.split().str[0])


def write(table: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """A file for each hospital, as it would lie there; and one of all, from which the schema is drafted."""
    folder.mkdir(parents=True, exist_ok=True)
    table.drop(columns="hospital").to_csv(folder / "all.csv", index=False)
    found = {}
    for name, rows in table.groupby("hospital"):
        found[name] = folder / f"{name}.csv"
        rows.drop(columns="hospital").to_csv(found[name], index=False)
    return found


def command(*parts: object) -> float:
    """Run a command of coterie, shown as it would be typed with the ends of what it prints; the seconds it took."""
    words = [str(part) for part in parts]
    print(f"\n$ coterie {shlex.join(words)}", flush=True)
    start = time.perf_counter()
    with subprocess.Popen(  # noqa: S603 - the words are this file's own
        [Path(sys.executable).with_name("coterie"), *words], stdout=subprocess.PIPE, text=True
    ) as run:
        lines = []
        for line in run.stdout:  # a run over Flower takes minutes: its first lines are shown as they come
            lines.append(line)
            if len(lines) <= ENDS:
                print(line, end="", flush=True)
    seconds = time.perf_counter() - start
    if len(lines) > 2 * ENDS:
        print(f"... {len(lines) - 2 * ENDS} more lines ...")
    print("".join(lines[max(ENDS, len(lines) - ENDS) :]), end="", flush=True)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, run.args)
    return seconds


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
