"""`coterie fit CONFIG.toml` and `coterie compare CONFIG.toml`: what is printed, what is written, what is refused."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as library
from coterie import load
from coterie.report.progress import Progress, line
from coterie.runs.loop_and_callbacks import Look
from coterie.status_line import Line
from tests.cli.harness import coterie, files

CONFIG = """
[data]
partition = "rotated"
clients = 8
rows = 240
[method]
name = "ditto"
[run]
rounds = 4
seeds = 2
"""
PROGRAM = Path(sys.executable).with_name("coterie")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("digits.toml").write_text(CONFIG)
    return tmp_path


def changed(old, new):
    Path("digits.toml").write_text(CONFIG.replace(old, new))


def test_an_interrupt_says_that_the_checkpoint_is_kept(folder):
    Path("own.py").write_text("def stop(look):\n    if look.round == 2:\n        raise KeyboardInterrupt\n")
    changed("rounds = 4", 'rounds = 4\ncheckpoint_every = 1\ncallbacks = ["own:stop"]')
    ran = coterie("fit", "digits.toml", "--out", "cut")
    assert ran.code == 130
    assert "--resume" in ran.err
    assert "Interrupted: 'cut' was written." in ran.err


def test_trains_and_writes_models_tables_and_report(folder):
    ran = coterie("fit", "digits.toml", "--out", "trained")
    assert (ran.code, ran.err) == (0, "")
    assert "ditto has an accuracy of" in ran.out
    assert "Report: trained/report.html" in ran.out
    written = {Path(f).name for f in files(folder / "trained")}
    assert {"training.json", "metrics.csv", "clients.csv", "report.html", "checkpoint"} < written
    curve, clients = pd.read_csv("trained/metrics.csv"), pd.read_csv("trained/clients.csv")
    assert curve["round"].tolist() == [1, 2, 3, 4]
    assert {"accuracy", "accuracy_worst", "accuracy_10th", "loss", "bytes_up"} <= set(curve)
    assert len(clients) == 8
    saved = load("trained")
    assert saved.evidence.fingerprint in ran.out
    page = Path("trained/report.html").read_bytes()
    assert coterie("report", "trained", "--out", "again.html").code == 0
    assert Path("again.html").read_bytes() == page
    Path("t.csv").write_text("x\n1\n")
    assert "has nets, which answer arrays" in coterie("predict", "trained", "t.csv").message
    assert curve["accuracy"].iloc[-1] == pytest.approx(saved.run.scores.summary()["accuracy"])


def test_nothing_is_written_without_being_asked(folder):
    ran = coterie("fit", "digits.toml")
    assert ran.code == 0
    assert "Nothing was written: add --out DIR" in ran.out
    assert files(folder) == {"digits.toml"}


def test_a_killed_process_is_resumed(folder):
    changed("rounds = 4", "rounds = 4000\ncheckpoint_every = 1\nevaluate_every = 100000")
    process = subprocess.Popen([PROGRAM, "fit", "digits.toml", "--out", "cut"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (folder / "cut" / "ditto-seed0" / "checkpoint").exists() and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "cut" / "training.json").exists()
    from coterie.engines.checkpoint_and_journal import read_durable

    cut = read_durable(folder / "cut" / "ditto-seed0" / "checkpoint")["state"]["method"]["t"]
    assert 1 <= cut < 4000
    changed("rounds = 4", f"rounds = {cut + 5}\ncheckpoint_every = 1\nevaluate_every = 100000")
    refused = coterie("fit", "digits.toml", "--out", "cut", "--resume").message
    assert "run.rounds (4000 there" in refused
    assert "Rounds can only be made more" in refused


def test_a_run_is_resumed_by_the_command(folder):
    assert coterie("fit", "digits.toml", "--out", "cut").code == 0
    changed("rounds = 4", "rounds = 7")
    for draft in ("ditto-seed0/.checkpoint", ".training-0123456789abcdef.safetensors", ".metrics.csv"):
        (folder / "cut" / f"{draft}.01234567.part").touch()  # as a process leaves them that is killed while it writes
    assert coterie("fit", "digits.toml", "--out", "cut", "--resume").code == 0
    assert not list((folder / "cut").rglob(".*.part"))
    assert coterie("fit", "digits.toml", "--out", "straight").code == 0
    one, other = load("cut"), load("straight")
    assert (one.theta == other.theta).all()
    columns = ["round", "accuracy", "loss", "bytes_up", "bytes_down"]
    pd.testing.assert_frame_equal(*(pd.read_csv(f"{n}/metrics.csv")[columns] for n in ("cut", "straight")))
    changed('name = "ditto"', 'name = "ditto"\nlam = 2.0')
    assert (
        "methods.ditto.lam (0.1 there, 2.0 here)" in coterie("fit", "digits.toml", "--out", "cut", "--resume").message
    )


@pytest.mark.parametrize("change", [('"ditto"', '"fedavg"'), ("seeds = 2", "seeds = [5]")])
def test_a_checkpoint_of_another_method_or_seed_is_none_to_resume(folder, change):
    assert coterie("fit", "digits.toml", "--out", "cut").code == 0
    before = files(folder / "cut")
    changed(*change)
    ran = coterie("fit", "digits.toml", "--out", "cut", "--resume")
    assert ran.code == 2 and "has no checkpoint of" in ran.message
    assert files(folder / "cut") == before


def test_compares_with_local_and_pooled_always_in(folder):
    ran = coterie("compare", "digits.toml", "--methods", "fedavg,ifca", "--out", "t.csv", "--report", "r.html")
    assert (ran.code, ran.err) == (0, "")
    table = pd.read_csv("t.csv").set_index("method")
    assert set(table.index) == {"local", "pooled", "fedavg", "ifca"}
    assert table["accuracy"].is_monotonic_decreasing
    assert table["to_best"].iloc[0] == 0.0
    assert ran.out.count("\n> ") == 1
    assert "Means over 2 seeds" in ran.out
    page = Path("r.html").read_text()
    assert "Learning curves" in page
    assert "Who is with whom: ifca" in page
    again = coterie("compare", "digits.toml", "--methods", "fedavg,ifca").out
    timeless = re.compile(r" *[\d.]+$", flags=re.MULTILINE)  # seconds are the last column
    assert timeless.sub("", again) == timeless.sub("", ran.out.partition("Written")[0])


def test_settings_are_chosen_and_it_is_said(folder):
    Path("digits.toml").write_text(CONFIG + "[methods.pooled]\neta = [1e-9, 0.3]\n")
    ran = coterie("compare", "digits.toml", "--methods", "fedavg", "--out", "t.csv", "--report", "r.html")
    assert ran.code == 0
    assert pd.read_csv("t.csv").set_index("method")["chosen"]["pooled"] == "eta=0.3, B=10"
    assert "test rows chose nothing" in Path("r.html").read_text()


OWN = """
from dataclasses import dataclass
from coterie.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Half(FedAvg):
    '''FedAvg with half of its steps.'''
    eta: float = 0.05
"""


@pytest.fixture
def own(folder, monkeypatch):
    """A method of one's own beside the configuration."""
    (folder / "own_of_cli.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "own_of_cli:Half"
    sys.modules.pop("own_of_cli", None)


def test_a_method_of_one_s_own_is_compared_trained_and_resumed(folder, own):
    ran = coterie("compare", "digits.toml", "--methods", f"fedavg,{own}", "--out", "t.csv", "--report", "r.html")
    assert (ran.code, ran.err) == (0, "")
    assert set(pd.read_csv("t.csv")["method"]) == {"local", "pooled", "fedavg", own}
    assert "FedAvg with half of its steps" in Path("r.html").read_text()
    changed('"ditto"', f'"{own}"')
    assert coterie("fit", "digits.toml", "--out", "cut").code == 0
    changed('"ditto"\n[run]\nrounds = 4', f'"{own}"\n[run]\nrounds = 6')
    assert coterie("fit", "digits.toml", "--out", "cut", "--resume").code == 0
    assert coterie("fit", "digits.toml", "--out", "straight").code == 0
    one, other = load("cut"), load("straight")
    assert one.method == own and (one.theta == other.theta).all()
    (folder / "own_of_cli.py").write_text(OWN.replace("0.05", "0.07"))
    sys.modules.pop("own_of_cli")
    assert (
        "own_of_cli:Half.eta (0.05 there, 0.07 here)"
        in coterie("fit", "digits.toml", "--out", "cut", "--resume").message
    )
    assert (
        "has no 'Halv'. Did you mean 'Half'"
        in coterie("compare", "digits.toml", "--methods", "own_of_cli:Halv").message
    )


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("command", ["fit", "compare"])
def test_models_that_are_no_numbers_are_no_success(folder, own, command, value):
    models = f"    def models(self, fed, state):\n        return super().models(fed, state) * float('{value}')\n"
    (folder / "own_of_cli.py").write_text(OWN + models)
    out = ["--out", "t.csv"] if command == "compare" else ["--out", "trained"]
    ran = coterie(command, "digits.toml", "--methods", f"fedavg,{own}", *out)
    assert ran.code == 2 and f"models of {own} give no client a finite loss" in ran.err.replace("\n", " ")
    assert Path(out[1]).exists()  # with what the others gave


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "digits.toml", "--formula", "y ~ x", "--seed", "3"], "leave out --formula, --seed."),
        (["compare", "digits.toml", "--methods", "ditt"], "Did you mean 'ditto'"),
        (["compare", "digits.toml", "--report", "r.pdf"], "does not end in .html"),
        (["fit", "t.csv", "--resume"], "is a table: leave out --resume."),
        (["compare", "t.csv"], "Missing option '--formula'"),
        (["compare", "t.csv", "--formula", "y ~ x"], "Missing option '--client'"),
        (
            ["compare", "digits.toml", "--methods", "fedper"],
            "needs layers that are personal: say which in [layout]",
        ),
        (["fit", "none.toml"], "no file"),
        (["fit", "digits.toml", "--resume"], "no folder to resume from"),
        (["fit", "digits.toml", "--resume", "--out", "x"], "There is no file"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(folder, arguments, message):
    assert message in coterie(*arguments).message
    assert files(folder) == {"digits.toml"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('[model]\npath = "nowhere_at_all:make"', "The model 'nowhere_at_all:make' cannot be imported"),
        ('[model]\npath = "collections:OrderedDct"', "Did you mean 'OrderedDict'"),
        ('[model]\npath = "softmx"', "There is no model called 'softmx'. Did you mean 'softmax'"),
        ('[model]\npath = "mpl"', "There is no model called 'mpl'. Did you mean 'mlp'"),
        ('[layout]\npersonal = ["head*"]', "ditto trains the whole model, which has no use for [layout]"),
    ],
)
def test_models_and_layouts_that_are_wrong(lines, message):
    Path("digits.toml").write_text(CONFIG + lines)
    assert message in coterie("fit", "digits.toml").message


def test_a_model_that_needs_torch_says_so_without_it(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("coterie.objectives.deep")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    Path("digits.toml").write_text(CONFIG + '[model]\npath = "mlp"')
    assert "needs PyTorch: pip install 'coterie[torch]'" in coterie("fit", "digits.toml").message


def looks(n, rounds):
    return [Look("x", t, rounds, 1.0 * t, 1200 * t, 10, {"accuracy": 0.5, "loss": 1.0}, True) for t in range(1, n + 1)]


def test_the_line_of_progress():
    text = line("fedavg", looks(3, 9)[-1], 12.0)
    assert text == "fedavg: round 3 of 9, accuracy 0.500, loss 1.000, 3.60 kB up, 10 bytes down, 12 s left"


def test_lines_are_rare_where_nobody_watches(monkeypatch):
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("coterie.report.progress.monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    progress = Progress("fedavg", stream)
    progress.start({"method": "fedavg"})
    for look in looks(200, 200):
        progress.look(look)
    progress.end()
    written = stream.getvalue().splitlines()
    assert 1 <= len(written) <= 10
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_call_in_python_shows_its_line_once_it_takes_long_and_only_to_a_person(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    X, y = np.zeros((8, 2)), np.arange(8) % 2
    asked = {"client": [0] * 4 + [1] * 4, "method": "local", "test_fraction": 0, "rounds": 2}
    softmax = library.Torch("softmax")
    library.fit((X, y), softmax, **asked)
    assert not stream.getvalue()
    monkeypatch.setattr("coterie.report.progress.AFTER", 0.0)
    monkeypatch.setattr("coterie.report.progress.Progress.look", lambda self, look: self.shown.timer.join())
    library.fit((X, y), softmax, **asked)
    assert ("local" in stream.getvalue()) == terminal
    assert stream.getvalue().endswith("\x1b[2K" if terminal else "")


def test_of_two_lines_one_is_shown():
    outer = Line("outer", Terminal())
    outer.start()
    assert Line("inner", Terminal()).live is None
    outer.stop()
    assert Line("inner", Terminal()).live is not None


def test_a_person_sees_one_line_that_goes_away():
    stream = Terminal()
    progress = Progress("fedavg", stream)
    progress.start({"method": "fedavg"})
    for look in looks(3, 3):
        progress.look(look)
    progress.end()
    assert stream.getvalue().rstrip().count("\n") <= 1
