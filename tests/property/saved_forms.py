"""Every form that is saved, as a tree that can be changed, and how it is read and used again."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load as arrays_of
from safetensors.numpy import save as bytes_of

import coterie
from coterie import files
from coterie.deployment import toml_files
from coterie.deployment.coordinator import nets
from coterie.deployment.coordinator.run import run
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.federation_toml import Config as Federation
from coterie.deployment.logs import read as read_log
from coterie.deployment.logs import read_status, words
from coterie.deployment.schema import Schema
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines import InProcess, wire
from coterie.engines.checkpoint_and_journal import Journal, header, load_checkpoint, save_checkpoint
from coterie.engines.privacy import Event, Guard
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError, fitting
from coterie.methods.fedavg import FedAvg
from coterie.report.fit_page import render
from coterie.report.page import environment
from coterie.results import saved_results as store
from coterie.runs.config import Config
from coterie.runs.training import FILE, train
from coterie.runs.training_problem import TrainingProblem
from tests.contract.cases import quadratic
from tests.deployment.sites import build, home, say, tables, task
from tests.deployment.sites import transport as sites
from tests.engines.sites import nodes, transport
from tests.trained import result_of


@dataclass(frozen=True)
class Form:
    """A saved form.

    Attributes
    ----------
    tree : Any
        What is in its files: dicts, lists, texts, numbers and, where it has them, arrays.
    write : callable
        ``write(tree, folder)`` puts the files there, with the checksums that belong to them.
    use : callable
        ``use(folder)`` reads them and does all that users do with what was read.
    """

    tree: Any
    write: Any
    use: Any


def with_arrays(source: Path, name: str, prefix: str, use: Any) -> Form:
    """JSON beside a safetensors file that it names, with its SHA-256."""
    document = json.loads((source / name).read_text())
    arrays = arrays_of(next(source.glob("*.safetensors")).read_bytes())

    def write(tree: Any, folder: Path) -> None:
        held = {k: v for k, v in tree["arrays"].items() if isinstance(v, np.ndarray) and v.dtype.kind in "fiub"}
        content, document = bytes_of({k: np.ascontiguousarray(v) for k, v in held.items()}), tree["document"]
        digest = hashlib.sha256(content).hexdigest()
        if isinstance(document, dict) and isinstance(document.get("arrays"), dict):
            for key, value in (("file", f"{prefix}-{digest[:16]}.safetensors"), ("sha256", digest)):
                if document["arrays"].get(key) == original[key]:
                    document["arrays"][key] = value
        (folder / f"{prefix}-{digest[:16]}.safetensors").write_bytes(content)
        (folder / name).write_text(json.dumps(document))

    original = dict(document["arrays"])
    return Form({"document": document, "arrays": arrays}, write, use)


def messages(source: Path, use: Any) -> Form:
    """A folder of files of messages: checkpoints, heads and arrays of states."""
    names = [p.relative_to(source) for p in sorted(source.rglob("*")) if p.is_file() and p.read_bytes()[:1] == b"\xc3"]
    kept = {str(name): wire.decode((source / name).read_bytes(), writable=True) for name in names}

    def write(tree: Any, folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for name in kept:
            if name in tree:
                (folder / name).write_bytes(wire.encode(tree[name]))
            else:
                (folder / name).unlink()

    return Form(kept, write, use)


def text(tables: Any, name: str, use: Any, source: Path | None = None) -> Form:
    """A TOML or JSON file, beside others."""

    def write(tree: Any, folder: Path) -> None:
        if source is not None:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        if not isinstance(tree, dict):
            raise CoterieError("A file of this form is a table.")
        (folder / name).write_text(toml_files.text(tree) if name.endswith("toml") else json.dumps(tree))

    return Form(tables, write, use)


# --- tables ----------------------------------------------------------------------------------------------------------


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 90
    frame = pd.DataFrame({"school": np.arange(n) % 9, "x": rng.normal(size=n), "z": rng.uniform(1.0, 2.0, n)})
    frame["area"] = np.array(["north", "south", "west"])[frame["school"] % 3]
    frame["arm"] = np.array(["a", "b"])[rng.integers(0, 2, n)]
    return frame.assign(y=frame["x"] + 0.3 * frame["school"] + rng.normal(size=n))


def use_model(folder: Path) -> None:
    result = coterie.load(folder)
    result.predict(table(), interval=0.9)
    result.predict(table().drop(columns=["area"]).assign(school="new"), missing="empty")
    for about in ("global_coefficients", "cluster_coefficients", "client_coefficients", "client_std_errors",
                  "client_residual_sd", "variance_components", "merged"):  # fmt: skip
        getattr(result, about)
    repr(result), result._repr_html_()
    page = render(result)
    own = page.partition("<script>")[2].partition("</script>")[0]
    assert page.count("<script") == 1 and own == environment().globals["script"], "labels are shown, never read"


FITS: dict[str, dict[str, Any]] = {
    "hierarchical": {"formula": "y ~ C(arm) + bs(z, df=4) + center(x)", "cluster": "area", "splits": 1},
    "network": {"formula": "y ~ x", "method": "similarity-network", "network": {"lam": 0.05, "k": 3}, "splits": 0},
    "main clients": {"formula": "y ~ x", "method": "weighted-averaging", "splits": 0},
    "rounds": {
        "formula": "y ~ x",
        "method": "async-l2gd",
        "cluster": "area",
        "splits": 0,
        "rounds": {"steps": 20},
    },
}


def model(name: str, folder: Path) -> Form:
    options = dict(FITS[name])
    coterie.fit(table(), options.pop("formula"), "school", options.pop("cluster", ()), **options).save(folder)
    return with_arrays(folder, "model.json", "model", use_model)


# --- training --------------------------------------------------------------------------------------------------------


def problem(path: str, **run: Any) -> TrainingProblem:
    tables = {"data": {"clients": 3, "rows": 60, "partition": "iid"}, "model": {"path": path},
              "run": {"rounds": 2, "checkpoint_every": 1, **run}, "method": {"name": "ditto", "s": 1}}  # fmt: skip
    return TrainingProblem.of(Config.of(tables), 0)


def trained(path: str, folder: Path) -> Form:
    ready = problem(path)
    result_of(ready, train(ready, "ditto", {"s": 1})).save(folder)
    shape, rows = ready.data.train.X.shape[1:], np.arange(6)

    def use(folder: Path) -> None:
        saved = coterie.load(folder)
        X = np.zeros((6, *shape), np.float32)
        for client in saved.labels[:2]:
            saved.predict(X, client)
        saved.adapt(X, rows, steps=1)
        saved.configuration.fingerprint()
        repr(saved), saved.theory, saved.ledger, saved.comparison, saved.recommended, saved.notes, saved.config()
        saved.report(folder / "report.html")

    return with_arrays(folder, store.TRAINING.file, "training", use)


def resumed(folder: Path) -> Form:
    short, longer = problem("softmax", rounds=2), problem("softmax", rounds=3)
    train(short, "ditto", {"s": 1}, folder=folder)
    assert (folder / FILE).exists()
    return messages(folder, lambda folder: train(longer, "ditto", {"s": 1}, folder=folder, resume=True))


# --- engines ---------------------------------------------------------------------------------------------------------

PROBLEM = quadratic(8, d=3, k=2)
PARTS = [np.arange(3), np.arange(3, 8)]


def engine_checkpoint(folder: Path) -> Form:
    fed = InProcess(PROBLEM.objective, PROBLEM.clusters, PROBLEM.weights, PROBLEM.ids)
    method = FedAvg(eta=0.1, E=1, B=0)
    (state,) = method.run(fed, [1], method.init(fed))
    save_checkpoint(folder / "point", fed, state)

    def use(folder: Path) -> None:
        new = InProcess(PROBLEM.objective, PROBLEM.clusters, PROBLEM.weights, PROBLEM.ids)
        load_checkpoint(folder / "point", new)

    return messages(folder, use)


def run_over_sites(folder: Path, rounds: int) -> None:
    """A few exchanges with a journal and sites that keep their state; a fresh process each time, as it were."""
    carried = transport(PROBLEM, PARTS, folder / "sites")
    fed = Remote(carried, journal=folder / "journal", policy=Policy(deadline=1.0, retries=0))
    method = FedAvg(eta=0.1, E=1, B=0)
    with fitting("The journal", "Begin again."):  # as runs of methods by name have it
        begun = dict(fed.kept) if fed.kept is not None else method.init(fed)
        for state in method.run(fed, range(begun["t"] + 1, rounds + 1), begun):
            if state["t"] == 1:
                fed.keep(state)


def state_of_sites(folder: Path) -> Form:
    run_over_sites(folder, 3)

    def use(folder: Path) -> None:
        for node in nodes(PROBLEM, PARTS, folder / "sites").values():
            node.receive(wire.encode({"kind": "about"}))
        run_over_sites(folder, 4)

    return messages(folder, use)


def journal(folder: Path) -> Form:
    """Of a deployed run by its name, which has ended: run again, it goes through all that was counted."""
    build(folder, frames={name: tables()[name] for name in ("basel", "bern")}, policy={"deadline": 1.0, "retries": 0})
    home = folder / "coordinator" / "runs" / "r"
    home.mkdir(parents=True)
    described = {"program": "pooled", "task": {"formula": "score ~ age", "client": "ward"}}
    toml_files.write(home / "run.toml", described)
    run(sites(folder, ("basel", "bern")), folder / "coordinator", "r")
    path = next((home / "journal").glob("entries-*"))
    entries = list(Journal(shutil.copytree(home / "journal", folder / "copy"))._ahead)

    def write(tree: Any, out: Path) -> None:
        for part in ("coordinator", "sites"):
            shutil.copytree(folder / part, out / part)
        content = b""
        for entry in tree["entries"] if isinstance(tree["entries"], list) else [tree["entries"]]:
            data = wire.encode(entry)
            content += header(len(data)) + data
        (out / path.relative_to(folder)).write_bytes(content)

    def use(out: Path) -> None:
        run(sites(out, ("basel", "bern")), out / "coordinator", "r")

    return Form({"entries": entries}, write, use)


def book(folder: Path) -> Form:
    """What was spent of a site's privacy budget."""

    def guard(at: Path) -> Guard:
        return Guard(lambda request, key: b"", clip=1.0, noise=2.0, epsilon=5.0, book=at / "privacy.book")

    guard(folder)._write({Event(2.0, 1.0): 3, Event(2.0, 0.5): 1}, b"key")
    return messages(folder, lambda folder: guard(folder).spent)


# --- deployment ------------------------------------------------------------------------------------------------------


def deployed(name: str, folder: Path) -> Form:
    build(folder, frames={"basel": table().drop(columns=["school"]).rename(columns={"area": "ward"})}, labels=("ward",))
    site = home(folder, "basel")
    if name == "opened":
        request = {"kind": "open", "run": "r", "task": task(folder, "y ~ x", client="ward"), "seed": 0}
        assert "refused" not in say(SiteReceiver(site), **request)

        def again(folder: Path) -> None:
            said = say(SiteReceiver(folder), kind="about", run="r")
            if trouble := said.get("refused") or said.get("failed"):
                raise CoterieError(trouble)

        return messages(site, again)
    tables = files.read_toml(site / name, "a file")

    def use(folder: Path) -> None:
        Federation.read(folder), Schema.read(folder / "schema.toml")
        host = SiteReceiver(folder, member=Member.read(folder))
        say(host, kind="check")
        say(host, kind="open", run="r", task=task(folder.parent, "y ~ x", client="ward"), seed=0)

    form = text(tables, name, use, site)

    def write(tree: Any, out: Path) -> None:
        form.write(tree, out)
        shutil.copytree(folder / "coordinator", out.parent / "coordinator", dirs_exist_ok=True)

    return Form(tables, write, use)


RUN = {"program": "hierarchical", "seed": 3, "task": {"formula": "y ~ x", "family": "gaussian", "cluster": ["ward"]},
       "options": {"covariance": "isotropic", "reml": True}}  # fmt: skip
NETS = {"program": "nets", "task": {"formula": "y ~ x", "client": "ward"},
        "options": {"model": {"target": "y", "inputs": ["x"]}, "data": {"column": "ward"},
                    "run": {"rounds": 2}}}  # fmt: skip
STATUS = {"run": "r", "state": "running", "why": "", "exchange": 3, "work": "a:b", "away": {"bern": "it is away"},
          "missing": {"chur": {"since": "now", "exchange": 2, "why": "silent"}}, "quarantined": {}}  # fmt: skip
LINE = {"time": "2026-01-01T00:00:00Z", "exchange": 1, "kind": "ask", "work": "a:b", "answered": ["basel"], "asked": 2,
        "missing": {"bern": "late"}, "bytes_down": 10, "bytes_up": 2000, "seconds": 0.1}  # fmt: skip


def use_status(folder: Path) -> None:
    from coterie.cli.federation import _standing

    found = {"federation": "heart", "engine": "flower", "running": True, "sites": {}, "trouble": None}
    found |= {"revoked": {}, "certificate_ends": None, "run": read_status(folder)}
    _standing(found)


FORMS: dict[str, Any] = {
    **{f"model {name}": lambda folder, name=name: model(name, folder) for name in FITS},
    "trained softmax": lambda folder: trained("softmax", folder),
    "trained mlp": lambda folder: trained("mlp", folder),
    "checkpoint of training": resumed,
    "checkpoint": engine_checkpoint,
    "privacy.book": book,
    "state of sites": state_of_sites,
    "journal": journal,
    **{
        name: lambda folder, name=name: deployed(name, folder)
        for name in ("opened", "site.toml", "federation.toml", "schema.toml")
    },
    "run.toml": lambda folder: text(RUN, "run.toml", lambda folder: RunConfig.read(folder / "run.toml").asked(None)),
    "run.toml of nets": lambda folder: text(
        NETS, "run.toml", lambda folder: nets.configured(RunConfig.read(folder / "run.toml").options, 0, folder)
    ),
    "status.json": lambda folder: text(STATUS, "status.json", use_status),
    "log.jsonl": lambda folder: text(LINE, "log.jsonl", lambda f: [words(e) for e in read_log(f / "log.jsonl")]),
}
"""``make(folder)`` of every form."""
