"""`coterie doctor`: its own fit against dense matrices, its exit codes, and what a shell is told to complete."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.cli import doctor
from tests.cli.harness import coterie


def test_the_stored_number_is_that_of_dense_matrices():
    i = np.arange(48)
    x, who = np.sin(1.7 * i), i // 6
    y = 1.0 + 0.5 * x + np.cos(2.3 * who) + np.sin(9.1 * i + 0.3)
    X, block = np.stack([np.ones(48), x], 1), (who[:, None] == who) * (1.0 + np.outer(x, x))

    def deviance(logs):
        V = np.exp(logs[0]) * np.eye(48) + np.exp(logs[1]) * block
        A = X.T @ np.linalg.solve(V, X)
        r = y - X @ np.linalg.solve(A, X.T @ np.linalg.solve(V, y))
        terms = np.linalg.slogdet(V)[1] + np.linalg.slogdet(A)[1] + r @ np.linalg.solve(V, r)
        return terms + 46 * np.log(2.0 * np.pi)

    best = minimize(deviance, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-11})
    assert pytest.approx(-0.5 * best.fun, rel=1e-9) == doctor.EXPECTED


def test_all_is_well_here():
    ran = coterie("doctor", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and found["ok"], ran.err
    assert {"Python", "numba", "cores", "kernels", "extra torch", "self-test"} <= {c["what"] for c in found["checks"]}


def test_a_wrong_number_is_exit_code_1(monkeypatch):
    monkeypatch.setattr(doctor, "EXPECTED", -60.0)
    ran = coterie("doctor")
    assert ran.code == 1 and "FAILS self-test" in ran.out and ran.out.endswith("Not right: self-test.\n")


def test_a_package_that_is_missing_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None if name in ("numba", "torch") else "1.0")
    found = {check["what"]: check for check in (*doctor.versions(), *doctor.extras())}
    assert found["numba"]["ok"] is False and "pip install numba" in found["numba"]["found"]
    assert found["extra torch"]["ok"] and "pip install 'coterie[torch]'" in found["extra torch"]["found"]


def test_a_shell_completes_the_names_of_methods(monkeypatch):
    for key, value in {
        "_COTERIE_COMPLETE": "complete_bash",
        "COMP_WORDS": "coterie methods fedp",
        "COMP_CWORD": "2",
    }.items():
        monkeypatch.setenv(key, value)
    ran = coterie("methods", "fedp")
    assert ran.code == 0 and ran.out.split() == ["fedprox", "fedper"]
