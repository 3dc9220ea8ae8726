"""Algorithm 6 on softmax and nets, round by round, against plain loops; its ends; what travels and what stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.engines.local_engines import InProcess, Loopback
from coterie.errors import CoterieError
from coterie.methods.networks.similarity import Similarity
from coterie.methods.registry import trained_method
from coterie.objectives.glm import GLM
from coterie.relations.network import Network
from coterie.runs.training import train
from tests.messages import names
from tests.methods.plain_softmax import gradients, problem

NET = {"path": "mlp", "args": {"sizes": [64, 5, 10]}, "dtype": "float64"}
PAIR = {"data": {"clients": 2, "rows": 90, "angles": [0]}}
STEPS = {"eta": 0.4, "B": 0, "tau": 3}


def pulled(V, mass, weight, squared=False):
    """The prox of ``weight |z_0 - z_1|``, or half its square, in closed form, for clients of given masses."""
    gap = V[0] - V[1]
    if squared:
        u = weight * gap / (1.0 + weight * np.sum(1.0 / mass))
        return np.stack([V[0] - u / mass[0], V[1] + u / mass[1]])
    u = min(weight, np.linalg.norm(gap) / np.sum(1.0 / mass)) * gap / np.linalg.norm(gap)
    return np.stack([V[0] - u / mass[0], V[1] + u / mass[1]])


@pytest.mark.parametrize(("lam", "squared"), [(0.02, False), (0.2, False), (0.2, True)])
def test_softmax_takes_local_steps_and_the_exact_prox(lam, squared):
    pair = problem(**PAIR)
    gradient, rows = gradients(pair)
    share = rows / rows.sum()
    Z = np.zeros((2, pair.objective.dim))
    for _ in range(3):
        for i in range(2):
            for _ in range(3):
                Z[i] -= 0.4 * gradient(i, Z[i])
        Z = pulled(Z, share / (0.4 * 3), lam / 2, squared)
    how = {"lam": lam, "squared": squared, "gap": 1e-12, "edges": [("1", "2")]}
    found = train(pair, "similarity-network", STEPS | how)
    np.testing.assert_allclose(found.theta, Z, atol=1e-10 if squared else 1e-6)
    assert np.abs(Z[0] - Z[1]).max() > 1e-3


def test_a_net_shares_its_body_and_ties_its_heads():
    torch = pytest.importorskip("torch")
    pair = problem(**PAIR, model=NET)
    o, lam = pair.objective, 0.05
    head = np.concatenate([np.full(n, name.startswith("head")) for name, n in o.names.items()])
    share = o.counts / o.counts.sum()

    def gradient(i, theta):
        module = o.module(theta).train()
        rows = slice(int(o.starts[i]), int(o.stops[i]))
        x, y = torch.as_tensor(pair.data.train.X[rows]).double(), torch.as_tensor(pair.data.train.y[rows]).long()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        return np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])

    theta = np.tile(o.start(0), (2, 1))
    for _ in range(3):
        for i in range(2):
            for _ in range(3):
                theta[i] -= 0.4 * gradient(i, theta[i])
        theta[:, ~head] = share @ theta[:, ~head]
        theta[:, head] = pulled(theta[:, head], share / (0.4 * 3), lam / 2)
    layered = replace(pair, config=replace(pair.config, layout={"shared": None, "personal": ["head*"]}))
    found = train(layered, "similarity-network", STEPS | {"lam": lam, "gap": 1e-12, "edges": [("1", "2")]})
    np.testing.assert_allclose(found.theta, theta, atol=1e-6)
    assert head.any() and not head.all()
    assert any("convex" in note for note in found.notes) and any("tau = 3" in note for note in found.notes)


@pytest.mark.parametrize("net", [{}, {"model": NET}], ids=["softmax", "net"])
def test_without_ties_clients_are_local_and_with_strong_ones_they_are_fedavg(net):
    four = problem(**net)
    local = train(four, "local", {"eta": 0.4, "B": 0, "E": 3})
    fedavg = train(four, "fedavg", {"eta": 0.4, "B": 0, "E": 3})
    apart, one = (train(four, "similarity-network", STEPS | {"lam": lam}) for lam in (0.0, 1e4))
    np.testing.assert_allclose(apart.theta, local.theta, atol=1e-10)
    np.testing.assert_allclose(one.theta, np.broadcast_to(fedavg.theta, one.theta.shape), atol=1e-8)


def test_free_heads_are_local_while_ties_pull_the_other_layers():
    four = problem(model=NET)
    shared = replace(four, config=replace(four.config, layout={"shared": None, "personal": ["head*"]}))
    fedper = train(shared, "fedper", {"eta": 0.4, "B": 0, "E": 3})
    tied = train(four, "similarity-network", STEPS | {"lam": 1e4, "untied": ["head*"]})
    np.testing.assert_allclose(tied.theta, fedper.theta, atol=1e-8)
    with pytest.raises(CoterieError, match=names("untied shared personal")):
        train(shared, "similarity-network", STEPS | {"untied": ["dense*"]})


@pytest.mark.parametrize("space", ["model", "data", "feature"])
@pytest.mark.parametrize("net", [{}, {"model": NET}], ids=["softmax", "net"])
def test_networks_find_who_is_alike(net, space):
    eight = problem(data={"clients": 8, "rows": 640}, **net)
    trainer = trained_method("similarity-network")
    method = trainer.make(0, eta=0.4, B=0, network={"space": space, "k": 2}, labels=eight.data.labels)
    state = method.init(eight.engine(trainer))
    network = Network(8, state["edges"], state["weight"])
    assert network.against(eight.data.group)["inside"] > 0.75


def test_codecs_save_bytes_that_the_ledger_has():
    four = problem()
    runs = {
        up: train(four, "similarity-network", STEPS | {"up": up, "lam": 0.05}) for up in ("none", "tv:2", "topk:0.05")
    }
    sent = {up: run.ledger["bytes_up"] for up, run in runs.items()}
    looked = 4 * 8 * 650  # where own steps lead, for the network
    assert sent["tv:2"] < looked + 0.1 * sent["none"] and sent["topk:0.05"] < looked + 0.1 * sent["none"]
    assert all(run.status == "running" for run in runs.values())
    losses = [run.curve[-1]["loss"] for run in runs.values()]
    assert max(losses) < np.log(10)


def test_an_edge_names_a_client_that_is_there():
    with pytest.raises(CoterieError, match=names("edge 5 not there")):
        train(problem(), "similarity-network", STEPS | {"edges": [("1", "5")]})
    with pytest.raises(CoterieError, match=names("edges network")):
        trained_method("similarity-network").check({"edges": [["1", "2"]], "network": {"k": 2}})


def test_statistics_of_a_net_stay_with_its_clients():
    torch = pytest.importorskip("torch")
    from coterie.engines.local_engines import InProcess
    from coterie.objectives.deep import Deep

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    objective = Deep.of(net, X, y, [0, 10, 25], [10, 25, 40])
    fed = InProcess(objective)
    method = trained_method("similarity-network").make(0, B=0, lam=1e4, network={"k": 1})
    *_, state = method.run(fed, [1, 2], method.init(fed))
    theta = method.models(fed, state)
    same = np.ptp(theta, axis=0) < 1e-5
    kept = np.concatenate([np.full(n, name in objective.kept) for name, n in objective.names.items()])
    assert same[~kept].all() and not same[kept].all()


def test_the_feature_space_of_a_net_has_what_enters_its_personal_layers():
    torch = pytest.importorskip("torch")
    four = problem(data={"clients": 6, "rows": 180, "angles": [0, 90]}, model=NET)
    o, personal, w = four.objective, ("head*",), four.objective.start(3)
    with torch.no_grad():
        inner = o.module(w)[:-1](torch.as_tensor(four.data.train.X, dtype=torch.float64)).numpy()
    rows = np.concatenate([np.arange(a, b) for a, b in zip(o.starts, o.stops, strict=True)])
    stops = np.cumsum(o.counts)
    table = GLM(inner[rows], np.zeros(len(rows)), np.zeros(len(rows)), np.ones(len(rows)), stops - o.counts, stops)
    like = Similarity(space="feature", k=2)
    want, got = like.network(InProcess(table)), like.network(InProcess(o), w=w, personal=list(personal))
    np.testing.assert_array_equal(got.edges, want.edges)
    assert want.edges.tolist() != like.network(InProcess(o)).edges.tolist()  # of the inputs


def test_layers_that_are_called_by_keyword_are_not_compared_by():
    torch = pytest.importorskip("torch")
    from coterie.objectives.deep import Deep

    class ByKeyword(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(64, 10)

        def forward(self, X):
            return self.head(input=X)

    pair = problem(**PAIR)
    rows = pair.data.train
    o = Deep.of(ByKeyword(), rows.X.reshape(len(rows.X), -1), rows.y, rows.starts, rows.stops)
    with pytest.raises(CoterieError, match=names("head* not called modules features name others")):
        Similarity(space="feature", k=1).network(InProcess(o), w=o.start(0), personal=["head*"])


@pytest.mark.parametrize("space", ["feature", "model"])
def test_the_network_is_made_again_as_rounds_go(space, tmp_path):
    six = problem(data={"clients": 6, "rows": 180, "angles": [0, 90]}, model=NET, run={"rounds": 4})
    six = replace(six, config=replace(six.config, layout={"shared": None, "personal": ("head*",)}))
    given = STEPS | {"network": {"space": space, "k": 2}} | ({"alone": 3} if space == "model" else {})
    method = trained_method("similarity-network").make(0, **given, personal=("head*",), relearn=2)
    models = []
    for fed in (InProcess(six.objective, seed=0), Loopback(six.objective, sites=2, seed=0)):
        *_, state = method.run(fed, [1, 2, 3, 4])
        models.append(method.models(fed, state))
    np.testing.assert_allclose(models[1], models[0], rtol=1e-10, atol=1e-12)
    found = train(six, "similarity-network", given | {"relearn": 2})
    np.testing.assert_allclose(found.theta, models[0], rtol=1e-10, atol=1e-12)
    assert any("made again every 2 rounds" in note for note in found.notes)
    fixed = train(six, "similarity-network", given)
    assert found.ledger["exchanges"] > fixed.ledger["exchanges"]
    with pytest.raises(CoterieError, match=names("relearn model feature")):
        trained_method("similarity-network").make(0, **STEPS, relearn=2, network={"space": "data"})
