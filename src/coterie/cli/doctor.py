"""`coterie doctor`: whether what coterie needs is there, and works."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import typer

from coterie.cli.declared_options import Json
from coterie.cli.terminal import found, say
from coterie.errors import CoterieError, plural
from coterie.lazy_modules import pd
from coterie.numerics.arrays import Floats, kept
from coterie.status_line import status

NEEDED = ("coterie", "numpy", "scipy", "pandas", "numba", "formulaic")
OPTIONAL = ("torch", "onnx", "ray", "flower", "nvflare", "secure", "privacy", "data")
CLIENTS, ROWS = 8, 6


def doctor(as_json: Json = False) -> None:
    """Look at versions, cores, compiled kernels, extras and engines, and fit a small table whose answer is known.

    The exit code is 1 where something fails; what is not installed, and needed by nothing yet, is no failure.
    """
    with status("Looking ..."):
        checks = [*versions(), kernels(), *extras(), *engines(), fitted()]
    for check in checks:
        say(f"{'ok' if check['ok'] else 'FAILS':5} {check['what']}: {check['found']}", indent=" " * 6)
    failed = [check["what"] for check in checks if not check["ok"]]
    found(ok=not failed, checks=checks)
    if failed:
        say(f"Not right: {', '.join(failed)}.")
        raise typer.Exit(1)
    say("All is well.")


def checked(what: str, text: str, ok: bool = True) -> dict[str, Any]:
    """One thing that was looked at."""
    return {"what": what, "ok": ok, "found": text}


def installed(name: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> Iterator[dict[str, Any]]:
    """Of Python and what is needed, and how many cores there are to use."""
    yield checked("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in NEEDED:
        here = installed(name)
        yield checked(name, here or f"not installed: pip install {name}", here is not None)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    yield checked("cores", f"{usable} of {os.cpu_count()} usable; OMP_NUM_THREADS is {threads}")


def kernels() -> dict[str, Any]:
    """Where compiled kernels are kept, and how many are there."""
    from coterie.objectives.row_kernels import totals

    try:
        place, ready = kept(totals)
    except RuntimeError as problem:  # numba's, where no folder can be written to
        return checked("kernels", f"{problem}: set NUMBA_CACHE_DIR to a folder that you may write to", False)
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    text = f"{'compiled' if ready else 'to be compiled by the first fit, once'}, kept in {place} and beside it"
    if not os.access(above, os.W_OK):
        return checked("kernels", f"{place} cannot be written to: set NUMBA_CACHE_DIR to a folder that can", ready)
    return checked("kernels", text)


def extras() -> Iterator[dict[str, Any]]:
    """What each extra asks for: there, or how to install it; a part of it that is missing is a failure of none."""
    wanted = requires("coterie") or []
    for extra in OPTIONAL:
        mine = [text for text in wanted if re.search(rf"extra == ['\"]{extra}['\"]", text)]
        names = [m[0] for text in mine if (m := re.match(r"[\w.-]+", text)) and m[0] != "coterie"]
        here = {name: installed(name) for name in names}
        if names and all(here.values()):
            yield checked(f"extra {extra}", ", ".join(f"{name} {number}" for name, number in here.items()))
        else:
            yield checked(f"extra {extra}", f"not installed: pip install 'coterie[{extra}]'")


def engines() -> Iterator[dict[str, Any]]:
    """What starts each engine's server: an installed package without it cannot start anything."""
    if installed("flwr") is not None:
        beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        where = shutil.which("flower-superlink", path=beside)
        lacks = "there is no program flower-superlink: pip install --force-reinstall flwr"
        yield checked("engine flower", where or lacks, where is not None)
    if installed("nvflare") is not None:
        yield checked("engine nvflare", "runs in this Python")


def fitted() -> dict[str, Any]:
    """A fit of clients with as many rows each, whose largest likelihood is known in closed form."""
    from coterie import api

    i = np.arange(CLIENTS * ROWS)
    df = pd.DataFrame({"who": i // ROWS, "y": np.cos(2.3 * (i // ROWS)) + np.sin(9.1 * i + 0.3)})
    since = perf_counter()
    try:
        got = api.fit(df, "y ~ 1", client="who", method="hierarchical", reml=False, splits=0)
    except CoterieError as problem:
        return checked("self-test", str(problem), False)
    known, value = largest_likelihood(df["y"].to_numpy().reshape(CLIENTS, ROWS)), got.log_likelihood
    same = bool(abs(value - known) < 1e-7 * abs(known))
    text = f"a fit of {plural(len(df), 'row')} in {perf_counter() - since:.1f} s, log-likelihood {value:.6f}"
    return checked("self-test", text if same else f"{text}, where it should be {known:.6f}", same)


def largest_likelihood(y: Floats) -> float:
    """Of clients that differ by a normal intercept, y (clients, rows): sums of squares within and between say it."""
    m, n = y.shape
    within = float(((y - y.mean(1, keepdims=True)) ** 2).sum()) / (m * (n - 1))
    between = n * float(((y.mean(1) - y.mean()) ** 2).sum()) / m
    return float(-0.5 * (m * n * (np.log(2.0 * np.pi) + 1.0) + m * (n - 1) * np.log(within) + m * np.log(between)))
