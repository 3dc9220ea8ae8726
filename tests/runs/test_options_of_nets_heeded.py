"""Every option of a net's fit, given to every method: it changes the result, is noted, or is refused."""

from __future__ import annotations

from ast import literal_eval
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.methods.registry import TRAINED
from coterie.options import declared
from coterie.results.call_as_config import net_call_sections
from coterie.runs.config import Config
from coterie.runs.config_keys import Torch
from tests.cells import CLASSES, CLIENTS, INPUTS, arrays, net, of_net
from tests.messages import names

ROUNDS = 2
TAKEN = {
    **{"eta": 0.037, "B": 5, "C": 0.5, "E": 2, "tau": 4, "k": 3, "lam": 0.7, "alpha": 0.2, "p": 0.2, "rho": 0.3},
    **{"up": "float16", "down": "float16", "own": "weighted", "by": "restarts", "edges": [["0", "1"], ["2", "4"]]},
    **{"main": ["1", "2"], "collaborators": ["3", "4"], "network": {"space": "data", "k": 1}, "first": "zero"},
    **{"weigh": "clients", "p0": 0.6, "eps1": 0.0, "eps2": 90.0, "gamma": 0.9, "gap": 1e-1, "relearn": 1, "option": 1},
    **{"rounds": 1, "restarts": 3, "mu": 0.4, "margin": 2.0, "bend": 0.3, "steps": 3, "alone": 1, "adaptive": True},
    **{"rule": "median", "spread": 0.2, "personal": ["body*"], "shared": ["head*"]},
    **{"schedule_args": {"gamma": 0.5}},
    **{
        "head": ["body*"],
        "bias": ["body*bias"],
        "layers": ["head*"],
        "K": 2,
        "M": 3,
        "held": 0.6,
        "epsilon": 1.0,
        "noise": 0.2,
        "every": 1,
    },
    **{"untied": ["head*"], "free": ["head*"], "regions": {"0": "a", "1": "b"}, "beta": 0.3},
}
"""Values of hyper-parameters; of what is not here, another than the default."""
MODEL = {"clip": 0.01, "momentum": 0.5, "ridge": 0.3, "dtype": "float64", "buffers": "averaged", "loss": "own"}
MODEL |= {"optimizer": "Adam", "optimizer_args": {"weight_decay": 0.4}, "batches": "shuffled"}
MODEL |= {"metrics": ["auc"], "positive": 0}
MODEL |= {"score": "own", "greater_is_better": True, "inputs": ["x"], "target": "y", "heads": {"0": {"norm": True}}}
FREE = {"strict", "device", "path", "args", "batched", "at_once"}
"""What rightly changes nothing where nothing is broken or on one device, or says what the model is or how it runs."""
RARELY = {
    ("fedbn", "buffers"),  # it keeps statistics
    ("fedem", "buffers"),  # it refuses personal ones
    ("fedfomo", "epsilon"),  # two rounds are few for an affinity
    ("fedproto", "buffers"),  # prototypes alone travel
    ("local", "buffers"),  # nothing travels
    ("pooled", "buffers"),
    ("similarity-network", "gap"),  # it is what solves may leave, not what they leave
}
NEEDED = {
    "cfl": {"eps1": 9.0, "eps2": 1e-3},
    "found-groups": {"by": "updates", "steps": 2, "k": 2},
    "ifca": {"k": 2},
    "fedem": {"k": 2},
    "fedfomo": {"M": 2},
    "fedproto": {"lam": 0.3},
    "group-penalty": {"mu": 0.2},
    "weighted-averaging": {"k": 2},
    "bias-correction": {"k": 2, "rounds": 3},
    "similarity-network": {"lam": 0.003},
}
QUICK = ["pooled", "ifca", "weighted-averaging"]


def shares(outputs, targets):
    return torch.softmax(outputs, 1).gather(1, targets[:, None])[:, 0]


def sharply(outputs, targets):
    return 2.0 * nn.functional.cross_entropy(outputs, targets, reduction="none")


@cache
def fitted(method, option, value, in_model):
    row, own = TRAINED[method], {"loss": sharply, "score": shares}
    value = literal_eval(value)
    given = of_net(row) | {
        "rounds": {"rounds": ROUNDS, **({"B": 3} if "B" in row.hyper_parameters else {})} | NEEDED.get(method, {})
    }
    if method == "fedem":
        given.pop("personal", None)  # which it refuses
    model = {option: own.get(option, value)} if in_model else {}
    given["rounds"] |= {} if in_model or not option else {option: value}
    if option in ("edges", "network", "main"):
        given.pop(option if option == "main" else "network", None)
    X, y, client = arrays()
    norm = row.normalises or option == "buffers"
    try:
        found = coterie.fit(
            (X, y), Torch(net, **{"args": {"norm": True} if norm else {}, **model}), client, method=method, **given
        )
    except CoterieError:
        return None
    return found.theta, found.comparison.drop(columns=["seconds", "chosen"]), found.notes, found.run.curve


def of(method, option="", value=None, in_model=False):
    return fitted(method, option, repr(value), in_model)


def another(one):
    """Another value than the default."""
    if isinstance(one.default, bool):
        return not one.default
    if other := [name for name in one.names if name != one.default]:
        return other[0]
    return one.default + 1 if isinstance(one.default, int) else 0.6 * one.default or 0.3


def plain_of(method, option):
    """What a fit is compared with: with moving statistics, where they are what the option is about."""
    return of(method, "buffers", "personal", True) if option == "buffers" else of(method)


@pytest.mark.soak("weighted-averaging", "pooled")
@pytest.mark.parametrize("method", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.soak) for m in TRAINED])
def test_an_option_changes_something_is_noted_or_is_refused(method):
    known = declared(TRAINED[method].method_class)
    assert {*TRAINED[method].hyper_parameters} <= {*known}
    tried = [(name, TAKEN.get(name, name), False) for name in TRAINED[method].hyper_parameters]
    tried += [(name, value, True) for name, value in MODEL.items()]
    silent = []
    for option, value, in_model in tried:
        if option in FREE or (method, option) in RARELY:
            continue
        value = another(known[option]) if value == option else value
        plain, given = plain_of(method, option), of(method, option, value, in_model)
        same = given and plain[0].shape == given[0].shape and np.array_equal(plain[0], given[0], equal_nan=True)
        if same and plain[1].equals(given[1]) and {*given[2]} == {*plain[2]}:
            silent.append(option)
    assert plain and silent == []


def test_every_key_of_a_model_is_tried():
    assert {*MODEL, *FREE} == {*declared(Torch), *FREE}


GROUP = {str(i): i % 2 for i in range(CLIENTS)}
IDLE = [
    ({"method": "apfl", "net": {"momentum": 0.9}}, "momentum apfl one by one leave out"),
    ({"method": "dp-sgd", "net": {"clip": 1.0}}, "clip dp-sgd gradients leave out"),
    ({"method": "dp-sgd", "net": {"momentum": 0.5}}, "momentum dp-sgd gradients leave out"),
    ({"method": "scaffold", "net": {"optimizer": "Adam"}}, "optimizer scaffold plain steps leave out"),
    ({"method": "bias-correction", "rounds": {"schedule": "StepLR"}}, "bias-correction no schedule one size leave out"),
    ({"method": "pooled", "rounds": {"C": 0.5}}, "pooled no hyper-parameter 'C'"),
    ({"method": "local", "privacy": {"clip": 1.0, "noise": 1.0}}, "local sends nothing privacy hide"),
    ({"method": "found-groups", "rounds": {"restarts": 3}}, "restarts found-groups by = 'restarts' leave out"),
    ({"method": "bias-correction", "rounds": {"alone": 3}}, "alone bias-correction a k leave out"),
    ({"method": "group-penalty", "group": GROUP, "rounds": {"margin": 3.0}}, "margin group-penalty a mu leave out"),
    ({"method": "async-l2gd", "rounds": {"alpha": 0.2}}, "alpha one cluster leave out"),
    ({"method": "async-al2sgd", "rounds": {"p": 0.2}}, "p one cluster leave out"),
    ({"method": "ifca", "rounds": {"spread": 2.0}}, "spread ifca first numbers leave out"),
    ({"method": "ifca", "rounds": {"spread": 0.0}}, "spread ifca first numbers leave out"),
    ({"method": "similarity-network", "network": {"space": "data"}, "rounds": {"alone": 3}}, "alone local steps"),
    ({"method": "fedavg", "rounds": {"seeds": 3}}, "seeds seed"),
    ({"method": "fedavg", "net": {"buffers": "averaged"}}, "buffers averaged no leave out"),
]


@pytest.mark.parametrize(("given", "said"), IDLE)
def test_what_changes_nothing_is_refused_with_the_remedy(given, said):
    given, (X, y, client) = dict(given), arrays()
    more = {"personal": ["head*"]} if given["method"] == "group-penalty" else {}
    with pytest.raises(CoterieError, match=names(said)):
        coterie.fit((X, y), Torch(net, **given.pop("net", {})), client, **{"rounds": 1, **more, **given})


def test_momentum_of_rounds_of_one_step_is_noted():
    X, y, client = arrays()
    for batch, noted in ((0, True), (5, False)):
        found = coterie.fit((X, y), Torch(net, momentum=0.5), client, method="fedavg", rounds={"rounds": 1, "B": batch})
        assert any("momentum changes nothing" in note for note in found.run.notes) == noted


SHARED = [
    (["apfl"], {"net": {"momentum": 0.9}}, "momentum apfl"),  # local and pooled heed it
    (["scaffold", "fedavg"], {"net": {"optimizer": "Adam"}}, "optimizer scaffold plain steps"),
    (["apfl", "async-l2gd"], {"rounds": {"alpha": 0.2}}, "alpha async-l2gd one cluster"),
    (
        ["similarity-network", "weighted-averaging"],
        {"network": {"space": "data"}, "rounds": {"k": 2, "alone": 3}},
        "alone similarity-network local steps",
    ),
    (["weighted-averaging", "similarity-network"], {"rounds": {"alone": 3}}, "alone weighted-averaging without a k"),
]
"""What a comparison is given for all its methods, of which one heeds it, and one does not."""


@pytest.mark.parametrize(("methods", "given", "said"), SHARED)
def test_what_one_method_of_a_comparison_heeds_is_noted_of_the_others(methods, given, said):
    given, (X, y, client) = dict(given), arrays()
    model, rounds = Torch(net, **given.pop("net", {})), {"rounds": 1, **given.pop("rounds", {})}
    config = Config.of(net_call_sections((X, y), model, {"client": client, "rounds": rounds, **given}))
    found = compare(config, methods)
    idle = {name: [n for n in runs[0].notes if "changes nothing for" in n] for name, runs in found.runs.items()}
    whose = said.split()[1]
    assert all(word in idle[whose][0] for word in said.split()[::2])
    assert all(not notes for name, notes in idle.items() if name != whose)


@pytest.mark.parametrize(
    ("methods", "rounds", "said"),
    [
        (["async-l2gd", "async-al2sgd"], {"alpha": 0.2}, "alpha one cluster leave out"),
        (["weighted-averaging", "bias-correction"], {"alone": 3}, "alone a k leave out"),
        (["ifca", "fedavg"], {"spread": 0.0}, "spread ifca leave out"),
    ],
)
def test_what_no_method_of_a_comparison_heeds_is_refused(methods, rounds, said):
    X, y, client = arrays()
    with pytest.raises(CoterieError, match=names(said)):
        coterie.compare((X, y), Torch(net), client, methods=methods, rounds={"rounds": 1, **rounds})


@pytest.mark.soak("0-loopback", "5-inprocess")
@pytest.mark.parametrize("engine", ["inprocess", "loopback"])
@pytest.mark.parametrize("batch", [0, 5])
def test_a_resumed_run_has_the_notes_of_one_never_cut(tmp_path, engine, batch):
    X, y, client = arrays()

    def run(folder, resume=False, rounds=2):
        given = {"client": client, "method": "fedavg", "engine": engine, "rounds": {"rounds": rounds, "B": batch}}
        tables = net_call_sections((X, y), Torch(net, momentum=0.5), given)
        return compare(Config.of(tables), ["fedavg"], alone=True, models=True, folder=folder, resume=resume).runs

    straight = run(tmp_path / "straight")["fedavg"][0]
    run(tmp_path / "cut")
    resumed = run(tmp_path / "cut", resume=True)["fedavg"][0]
    assert resumed.notes == straight.notes
    assert any("momentum" in note for note in resumed.notes) == (batch == 0)


def test_two_columns_of_clients_are_one_too_many():
    X, y, client = arrays()
    import pandas as pd

    rows = pd.DataFrame(X, columns=list("abcd")[:INPUTS]).assign(y=y % CLASSES, c=client, d=client // 2)
    with pytest.raises(CoterieError, match=names("client column partition once")):
        coterie.fit(rows, Torch(net, target="y"), "c", method="fedavg", rounds=1, partition={"column": "d"})
