"""`coterie doctor`: whether what coterie needs is there, and works."""

from __future__ import annotations

import os
import platform
import re
import shutil
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
from coterie.status_line import status

NEEDED = ("coterie", "numpy", "scipy", "pandas", "numba", "formulaic")
OPTIONAL = ("torch", "onnx", "ray", "flower", "nvflare", "secure", "privacy", "data")
SERVERS = {"flower": "flower-superlink", "nvflare": "nvflare"}
EXPECTED = -61.54319286  # of `coterie doctor`'s fit; tests/cli/test_doctor.py has the same from dense matrices


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
        place = Path(totals.compiled.stats.cache_path)  # type: ignore[attr-defined]
    except RuntimeError as problem:  # numba's, where no folder can be written to
        return checked("kernels", f"{problem}: set NUMBA_CACHE_DIR to a folder that you may write to", False)
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    ready = any(place.glob("row_kernels.totals-*.nbi"))
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
        if all(here.values()):
            yield checked(f"extra {extra}", ", ".join(f"{name} {number}" for name, number in here.items()))
        else:
            yield checked(f"extra {extra}", f"not installed: pip install 'coterie[{extra}]'")


def engines() -> Iterator[dict[str, Any]]:
    """Programs of engines: an installed package without its program cannot start anything."""
    for engine, program in SERVERS.items():
        package = {"flower": "flwr"}.get(engine, engine)
        if installed(package) is not None:
            where = shutil.which(program)
            lacks = f"there is no program {program} on the PATH: install coterie[{engine}] again"
            yield checked(f"engine {engine}", where or lacks, where is not None)


def fitted() -> dict[str, Any]:
    """A fit of a small table against a stored number."""
    import pandas as pd

    import coterie

    i = np.arange(48)
    x = np.sin(1.7 * i)
    df = pd.DataFrame({"who": i // 6, "x": x, "y": 1.0 + 0.5 * x + np.cos(2.3 * (i // 6)) + np.sin(9.1 * i + 0.3)})
    since = perf_counter()
    try:
        got = coterie.fit(df, "y ~ x", client="who", method="hierarchical", covariance="isotropic", splits=0)
    except CoterieError as problem:
        return checked("self-test", str(problem), False)
    value = got.log_likelihood
    same = abs(value - EXPECTED) < 1e-6 * abs(EXPECTED)
    text = f"a fit of {plural(len(df), 'row')} in {perf_counter() - since:.1f} s, log-likelihood {value:.8f}"
    return checked("self-test", text if same else f"{text}, where it should be {EXPECTED}", same)
