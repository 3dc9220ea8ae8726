"""Nets on a site's own rows: what a coordinator names, and what it is told of rows that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.deployment.federation_toml import PROBLEM, Config
from coterie.deployment.schema import propose
from coterie.deployment.site import disclosure
from coterie.deployment.site.nets import outcomes, weighed
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines.privacy.gaussian_mechanism import clipped
from coterie.federation import work_name
from coterie.methods.knn_per import remember
from tests.deployment.site.test_disclosure import opening, patients, place
from tests.deployment.sites import say

pytest.importorskip("torch")

MLP = {"path": "mlp", "args": {"sizes": [2, 3, 2]}, "dtype": "float64"}
MEMORY = {"head": ["*"], "k": 1, "scale": 1.0, "lam": 0.5, "held": 0.0, "w": np.zeros(17), "transport": {}}


def opened(site, schema, model=MLP, run="r", formula="event ~ age + chol", classes=2):
    """The answer to a net on two columns of the table."""
    net = {"model": model, "classes": classes}
    return say(site, **opening(schema, formula, run, family="gaussian", net=net))


@pytest.mark.parametrize("noise", [False, True])
def test_rows_that_a_client_remembers_do_not_leave_a_site_that_guards_them(tmp_path, noise):
    frame = patients()
    site, (schema, _) = place(tmp_path / "davos", frame), propose(frame, labels=["ward"])
    assert opened(site, schema)["done"] == "open"
    work, message = work_name(remember), MEMORY
    if noise:
        form = {"form": "names", "bound": {"theta": 1.0}, "noise": 0.0, "sampling": 1.0, "seed": None}
        work, message = work_name(clipped), {"inner": work, "message": message, **form}
    exchange = {"exchange": [1, 1], "counted": [0, 0], "rows": None, "by": None}
    told = say(site, kind="total" if noise else "ask", run="r", work=work, message=message, **exchange)
    assert told.keys() == {"refused"} and "remember hold rows" in told["refused"]


def test_a_site_that_guards_nothing_answers_what_clients_remember(tmp_path):
    frame = patients()
    site, (schema, _) = place(tmp_path / "davos", frame, min_group=1), propose(frame, labels=["ward"])
    assert opened(site, schema)["done"] == "open"
    exchange = {"exchange": [1, 1], "counted": [0, 0], "rows": None, "by": None}
    told = say(site, kind="ask", run="r", work=work_name(remember), message=MEMORY, **exchange)
    rows = told["values"]["theta"].values[19:].reshape(-1, 3)
    np.testing.assert_array_equal(rows, frame[["age", "chol", "event"]])


def test_outcomes_that_a_net_has_no_class_for_are_told_to_the_owner_alone_and_counted(tmp_path):
    frame, said = patients(), []
    for name, rows in (("davos", frame), ("bern", frame.assign(age=frame["age"] + 7))):
        site = place(tmp_path / name, rows, disclosure={"works": ["*"], "refusals_per_day": 2})
        schema, _ = propose(frame, labels=["ward"])
        short = [opened(site, schema, run=f"r{k}", formula="age ~ chol + los", classes=k) for k in (2, 3, 4)]
        said.append([one["refused"] for one in short])
        assert "first outside" in (tmp_path / name / PROBLEM).read_text()
    assert said[0] == said[1]
    assert "do not fit the net" in said[0][0] == said[0][1] and "refusals_per_day" in said[0][2]


@pytest.mark.parametrize("loss, few", [("cross_entropy", 4), ("cross_entropy", 5), ("bce", 4)])
def test_a_class_of_numbers_has_rows_enough_as_one_of_text_has(loss, few, tmp_path):
    """Of a class of one row a gradient is that row."""
    some, rows = np.arange(80) < few, np.arange(80)
    grade = rows / 200 + some / 2 if loss == "bce" else np.where(some, 2, rows % 2)
    frame = patients().assign(grade=grade)
    site, (schema, _) = place(tmp_path / "davos", frame), propose(frame, labels=["ward"])
    model, classes = ({"path": "softmax"}, 3) if loss != "bce" else (MLP | {"loss": loss, "args": {"sizes": [2, 1]}}, 0)
    assert opened(site, schema, model, formula="grade ~ age + chol", classes=classes)["done"] == "open"
    exchange = {"exchange": [1, 1], "counted": [0, 0], "rows": None, "by": None}
    told = say(site, kind="total", run="r", work=work_name(weighed), message={}, **exchange)
    assert ("values" in told) == (few == 5)


@pytest.mark.parametrize(
    "model",
    [
        MLP | {"args": {"sizes": [2, 10**11, 2]}},
        MLP | {"args": {"sizes": [2, 9 * 10**6, 2]}},
        MLP | {"args": {"sizes": [2, *[1] * 1000, 2]}},
        {"path": "coterie.objectives.deep.nets:mlp", "args": {"sizes": [2, 10**9, 2]}},
        {"path": "unet", "args": {"channels": [10**8, 10**8]}},
        {"path": "softmax"},
    ],
)
def test_a_net_of_any_size_does_not_hold_a_site_up(tmp_path, model):
    frame = patients()
    site, (schema, _) = place(tmp_path / "davos", frame), propose(frame, labels=["ward"])
    assert "more than 10,000,000 numbers" in opened(site, schema, model, classes=10**8)["refused"]


@pytest.mark.parametrize("classes", [-1, 2.5, "x", None, True])
def test_a_number_of_classes_is_whole(tmp_path, classes):
    frame = patients()
    site, (schema, _) = place(tmp_path / "davos", frame), propose(frame, labels=["ward"])
    assert "one version of coterie" in opened(site, schema, classes=classes)["refused"]


def test_what_is_wrong_with_a_net_whatever_rows_hold_is_said(tmp_path):
    frame = patients()
    site, (schema, _) = place(tmp_path / "davos", frame), propose(frame, labels=["ward"])
    assert "cannot take rows of shape (2,)" in opened(site, schema, MLP | {"args": {"sizes": [3, 2]}})["refused"]


OWN = """
import numpy as np
from coterie.objectives.softmax import Softmax


def make(path, site, **ignored):
    X = np.random.default_rng(0).normal(size=(80, 2))
    return Softmax.of(X, (X[:, 0] > 0).astype(int), [0, 40], [40, 80], 2), ["a", "b"]
"""


def test_splits_of_own_code_that_differ_by_a_row_do_not_both_leave(tmp_path):
    (tmp_path / "splits_of_own.py").write_text(OWN)
    Config("toy", "nvflare", sites=("east", "west")).write(tmp_path)
    Member("east", allow=("splits_of_own:make",)).write(tmp_path)
    host, said = SiteReceiver(tmp_path), []
    for n, fraction in enumerate((0.25, 0.275, 0.5, 0.25)):
        task = {"kind": "factory", "name": "splits_of_own:make", "options": {"n": n}}
        task |= {"hold": {"seed": 0, "repeat": 0, "fraction": fraction}}
        say(host, kind="open", run=f"r{n}", task=task, seed=0)
        asked = {"work": work_name(outcomes), "message": {}, "rows": None, "by": None}
        total = say(host, kind="total", run=f"r{n}", exchange=[1, 1], counted=[0, 0], **asked)
        said.append(total.get("refused", ""))
    assert said == ["", f"Site 'east': {disclosure.DECLINES}", "", ""]
    assert "A sum has left before whose rows differ from these by 2" in (tmp_path / PROBLEM).read_text()
