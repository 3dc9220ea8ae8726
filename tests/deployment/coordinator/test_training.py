"""Methods that train at home, in a deployed run: objectives by a factory that the sites' owners allow."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie.deployment.coordinator.run import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.site.site_toml import Member
from coterie.engines import InProcess
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.registry import TRAINED
from coterie.objectives.softmax import Softmax
from tests.deployment.hospitals import begin, transport
from tests.deployment.sites import of_own_code

FACTORY = """
import numpy as np
from coterie.objectives.softmax import Softmax

def make(path, site, classes):
    seed = sum(map(ord, site))
    rng = np.random.default_rng(seed)
    counts = np.array([30, 20, 25])
    stops = np.cumsum(counts)
    X = rng.normal(size=(75, 4))
    y = (X[:, 0] + 0.5 * rng.normal(size=75) > 0).astype(int) + (X[:, 1] > 1)
    objective = Softmax.of(X, y, stops - counts, stops, classes=classes)
    return objective, [f"{site}-{i}" for i in range(3)]
"""
SITES = ("east", "north", "west")
TASK = {"factory": "factory_of_softmax:make", "options": {"classes": 3}}
OPTIONS = {"rounds": 7, "keep_every": 3, "eta": 0.1, "B": 10, "C": 0.7}


@pytest.fixture
def place(tmp_path):
    config = Config("toy", "nvflare", sites=SITES, policy={"deadline": 0.2, "pause": 0.05})
    return of_own_code(tmp_path, config, "factory_of_softmax", FACTORY)


def found(home):
    return load_file(home / "result" / "arrays.safetensors"), json.loads((home / "result" / "result.json").read_text())


def one_process():
    from coterie.data.labels import label_ids

    names: dict = {}
    exec(FACTORY, names)  # noqa: S102
    made = [names["make"](None, site, 3) for site in SITES]
    counts = np.concatenate([o.stops - o.starts for o, _ in made])
    stops = np.cumsum(counts)
    objective = Softmax.of(
        np.vstack([o.X for o, _ in made]),
        np.concatenate([o.y for o, _ in made]).astype(np.int64),
        stops - counts,
        stops,
        classes=3,
    )
    labels = np.array([label for _, labels in made for label in labels], dtype=object)
    ids = label_ids(labels)
    return InProcess(objective, ids=ids, seed=5), labels


def in_process():
    fed, _ = one_process()
    method = FedAvg(eta=0.1, B=10, C=0.7, seed=5)
    *_, state = method.run(fed, range(1, 8), method.init(fed))
    return state


def test_a_trained_model_is_that_of_one_process(place):
    coordinator, homes = place
    home = begin(coordinator, "run", {"program": "fedavg", "task": TASK, "options": OPTIONS, "seed": 5})
    run(transport(homes), coordinator, "run")
    arrays, said = found(home)
    np.testing.assert_allclose(arrays["w"], in_process()["w"], rtol=1e-12)
    assert said["t"] == 7 and said["status"] == "running" and len(said["clients"]) == 9


ROUNDS = {
    "similarity-network": {"rounds": 2, "network": {"k": 2}, "alone": 3},
    "weighted-averaging": {"rounds": 2, "main": ["east-0", "west-2"], "k": 2, "alone": 3},
    "group-sgd": {"rounds": 2, "shared": ["*"]},
    **{
        name: {"rounds": 2, "personal": ["*"]} for name in ("fedper", "fedrep", "fedbabu", "lg-fedavg", "group-penalty")
    },
}
NOT_HERE = {"pooled": "all rows in one place", "fedbn": "normal"}
NOT_HERE |= dict.fromkeys(("fedrod", "moon", "fedproto"), "matches no parameter")


@pytest.mark.parametrize("name", TRAINED)
def test_a_method_over_sites_trains_as_in_one_process(name, place):
    coordinator, homes = place
    given = ROUNDS.get(name, {"rounds": 2})
    home = begin(coordinator, "run", {"program": name, "task": TASK, "options": given, "seed": 5})
    if name in NOT_HERE:
        with pytest.raises(CoterieError, match=NOT_HERE[name]):
            run(transport(homes), coordinator, "run")
        return
    run(transport(homes), coordinator, "run")
    fed, labels = one_process()
    method = TRAINED[name].make(5, **{k: v for k, v in given.items() if k != "rounds"})
    if hasattr(method, "labels"):
        method = replace(method, labels=labels)
    *_, state = method.run(fed, range(1, 3), method.init(fed))
    arrays, said = found(home)
    kept = [key for key in arrays if isinstance(state.get(key), np.ndarray) and arrays[key].dtype.kind == "f"]
    assert kept and said["t"] == 2
    for key in kept:
        np.testing.assert_allclose(arrays[key], state[key], rtol=1e-10, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("dies", [3, 8, 11, 15])
def test_a_run_that_was_cut_ends_like_one_that_was_not(place, dies):
    coordinator, homes = place
    program = {"program": "fedavg", "task": TASK, "options": OPTIONS, "seed": 5}
    straight, cut = (begin(coordinator, name, program) for name in ("straight", "cut"))
    run(transport(homes), coordinator, "straight")
    lame, calls = transport(homes), [0]

    def receive(data, inner=lame._receivers["north"]):
        calls[0] += 1
        return None if calls[0] > dies else inner(data)

    lame._receivers["north"] = receive
    try:
        run(lame, coordinator, "cut")
    except BelowQuorum:
        run(transport(homes), coordinator, "cut")
    np.testing.assert_array_equal(found(cut)[0]["w"], found(straight)[0]["w"])


def test_an_objective_that_no_owner_allows_is_refused(place):
    coordinator, homes = place
    Member("north").write(homes[1])
    begin(coordinator, "run", {"program": "fedavg", "task": TASK, "options": OPTIONS})
    with pytest.raises(CoterieError, match=r"north.*not allowed here"):
        run(transport(homes), coordinator, "run")


def test_private_sums_say_what_they_cost(place):
    pytest.importorskip("dp_accounting")
    coordinator, homes = place
    for home in (coordinator, *homes):
        config = Config.read(home)
        Config(**{**config.__dict__, "privacy": {"clip": 0.5, "noise": 4.0, "delta": 1e-3}}).write(home)
    home = begin(coordinator, "run", {"program": "fedavg", "task": TASK, "options": OPTIONS | {"C": 1.0}, "seed": 5})
    run(transport(homes), coordinator, "run")
    arrays, said = found(home)
    assert np.isfinite(arrays["w"]).all()
    assert "epsilon" in said["privacy"] and not np.allclose(arrays["w"], in_process()["w"])
