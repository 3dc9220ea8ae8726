"""Processor time of a few short commands at a base beside this tree, in turns: ``make bench-compare BASE=main``.

It reports and does not judge: it ends with 0 whatever the ratios are. A ratio's interval holds the median with 95% and
more (Thompson 1936, from the order of pairs), and is wide beside other work. What cannot run at the base is named.
"""

from __future__ import annotations

import argparse
import filecmp
import io
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import ONE_THREAD

ROOT = Path(__file__).resolve().parents[1]
TABLE = "import coterie; from coterie.data.datasets import fetch; d = fetch({name!r})"
COMMANDS = {
    "import coterie, in a process of its own": (
        "import subprocess, sys",
        "subprocess.run([sys.executable, '-c', 'import coterie; coterie.fit'], check=True)",
    ),
    "fit, 7,185 rows, all methods compared": (
        TABLE.format(name="hsb82"),
        "coterie.fit(d, 'mAch ~ cses', 'school', 'sector')",
    ),
    "fit, 31,022 rows, two levels": (
        TABLE.format(name="chem97"),
        "coterie.fit(d, 'score ~ gcsecnt', 'school', 'lea', splits=0, method='hierarchical', covariance='diagonal')",
    ),
    "fit, 920 rows, classes, all methods compared": (
        TABLE.format(name="heart"),
        "coterie.fit(d, 'disease ~ age + sex', 'hospital', family='binomial')",
    ),
    "network prox, 2,000 clients": (
        "from benchmarks.network_prox import network; from coterie.numerics.network.prox import network_prox;"
        "V, e = network(2000)",
        "network_prox(V, e, 0.3, 2, 1e-6)",
    ),
    "a round of FedAvg, 200 clients, small net": (
        "import numpy as np; from coterie.engines import InProcess; from coterie.methods.fedavg import FedAvg;"
        "from coterie.objectives.deep import Deep; from coterie.objectives.deep.nets import mlp;"
        "r = np.random.default_rng(0); X = r.normal(size=(20000, 64)).astype('f4'); s = 100 * np.arange(200);"
        "o = Deep.of(mlp, X, X[:, :10].argmax(1), s, s + 100); f = InProcess(o, threads=1); m = FedAvg(eta=0.1, B=10);"
        "state = m.init(f)",
        "state = m.step(f, state)",
    ),
}
LOOP = """
import resource, sys, traceback
def used():
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in both)
names = {}
answers, sys.stdout = sys.stdout, sys.stderr
exec(sys.argv[1], names)
for _ in sys.stdin:
    before = used()
    exec(sys.argv[2], names)
    print(used() - before, file=answers, flush=True)
"""


class Side:
    """One command in a process of one tree."""

    def __init__(self, tree: Path, setup: str, statement: str) -> None:
        path = os.pathsep.join(map(str, (tree / "src", tree)))
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a tree just unpacked would be compiled at every import
        command, pipe = [sys.executable, "-W", "ignore", "-c", LOOP, setup, statement], subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=tree
        )

    def go(self) -> None:
        """Begin a call."""
        with suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def ask(self) -> float | None:
        """Processor seconds of one call; None where it does not run."""
        self.go()
        return self.took()

    def took(self) -> float | None:
        """Those of the call that was begun."""
        said = self.process.stdout.readline()
        return float(said) if said else None


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """What holds the median of values with this probability at least; all of them where they are few."""
    ordered, n = sorted(values), len(values)
    k = 0
    while 2 * sum(math.comb(n, i) for i in range(k + 2)) / 2**n <= 1.0 - level:
        k += 1
    return ordered[k], ordered[n - 1 - k]


def compared(name: str, base: Path, head: Path, pairs: int) -> tuple[Any, ...]:
    """A row of the table."""
    sides = [Side(tree, *COMMANDS[name]) for tree in (base, head)]
    try:
        for side in sides:
            side.go()  # both at once: what they compile and import is not counted
        for place, side in zip(("the base", "this tree"), sides, strict=True):
            if side.took() is None:
                return (name, f"does not run at {place}", "", "", "", "")
        times = [[side.ask() for side in sides] for _ in range(pairs)]
    finally:
        for side in sides:
            side.process.kill()
            side.process.communicate()
    ratios = [after / before for before, after in times]
    low, high = interval(ratios)
    verdict = "slower" if low > 1.05 else "faster" if high < 0.95 else "no clear difference"
    before, after = (statistics.median(column) for column in zip(*times, strict=True))
    median, span = statistics.median(ratios), f"{low:.2f} to {high:.2f}"
    return (name, f"{before:.3f}", f"{after:.3f}", f"{median:.2f}", span, verdict)


def share_kernels(base: Path) -> None:
    """Give the base what this tree has compiled, with the times of its source files, unless one of them differs."""
    compiled = list((ROOT / "src").rglob("__pycache__/*.nb[ic]"))
    sources = {file.parents[1] / f"{file.name.partition('.')[0]}.py" for file in compiled}
    there = {source: base / source.relative_to(ROOT) for source in sources if source.exists()}
    if not all(copy.exists() and filecmp.cmp(source, copy, shallow=False) for source, copy in there.items()):
        return
    for source, copy in there.items():
        shutil.copystat(source, copy)
    for file in compiled:
        (to := base / file.relative_to(ROOT)).parent.mkdir(exist_ok=True, parents=True)
        shutil.copyfile(file, to)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against_base", description=__doc__)
    parser.add_argument("base", help="a commit, tag or branch")
    parser.add_argument(
        "--pairs", type=int, default=6, help="calls of either side (default 6, the fewest that have a 95%% interval)"
    )
    given = parser.parse_args()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", given.base], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        share_kernels(Path(folder))
        print(f"| processor seconds | {given.base} | this tree | ratio | interval | |\n|---|---|---|---|---|---|")
        for name in COMMANDS:
            print(f"| {' | '.join(compared(name, Path(folder), ROOT, given.pairs))} |", flush=True)
    print(f"Load at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
