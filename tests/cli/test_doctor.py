"""`coterie doctor`: the number that its fit must have, its exit codes; and what a shell is told to complete."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from coterie.cli import doctor
from coterie.methods.registry import METHODS
from tests.cli.harness import coterie


def test_the_largest_likelihood_is_that_of_dense_matrices():
    y = np.random.default_rng(3).normal(size=(5, 4)) + 2.0 * np.arange(5)[:, None]
    who = np.arange(20) // 4

    def minus(logs):
        V = np.exp(logs[0]) * np.eye(20) + np.exp(logs[1]) * (who[:, None] == who)
        return -multivariate_normal.logpdf(y.ravel(), np.full(20, y.mean()), V)

    best = minimize(minus, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-11})
    assert doctor.largest_likelihood(y) == pytest.approx(-best.fun, rel=1e-9)


def test_all_is_well_here():
    ran = coterie("doctor", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and found["ok"], ran.err
    assert {"Python", "numba", "cores", "kernels", "extra torch", "self-test"} <= {c["what"] for c in found["checks"]}


def test_a_wrong_number_is_exit_code_1(monkeypatch):
    monkeypatch.setattr(doctor, "largest_likelihood", lambda y: -60.0)
    ran = coterie("doctor")
    assert ran.code == 1 and "FAILS self-test" in ran.out and ran.out.endswith("Not right: self-test.\n")


def test_a_package_that_is_missing_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None if name in ("numba", "torch") else "1.0")
    found = {check["what"]: check for check in (*doctor.versions(), *doctor.extras())}
    assert found["numba"]["ok"] is False and "pip install numba" in found["numba"]["found"]
    assert found["extra torch"]["ok"] and "pip install 'coterie[torch]'" in found["extra torch"]["found"]


@pytest.mark.parametrize(
    "words, found",
    [
        ("coterie methods fedp", [name for name in METHODS if name.startswith("fedp")]),
        ("coterie fit table.csv --method hier", ["hierarchical"]),
        ("coterie fit --fam", ["--family"]),
        ("coterie federation bud", ["budget"]),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(words, found, shell, monkeypatch):
    """A shell calls the command without arguments, and says what was typed in the environment."""
    typed = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for key, value in (typed if shell == "bash" else {"_TYPER_COMPLETE_ARGS": words}).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("_COTERIE_COMPLETE", f"complete_{shell}")
    ran = coterie()
    assert ran.code == 0 and all(name in ran.out for name in found)
    if shell == "bash":
        assert ran.out.split() == found
