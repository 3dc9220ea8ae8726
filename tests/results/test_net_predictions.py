"""Clients that come after a training: each method's own rule against a loop of plain steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie import Torch
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.registry import TRAINED
from coterie.objectives.holdout import halves
from coterie.objectives.mean_loss import sizes
from coterie.objectives.wide_models import WideModels

RNG = np.random.default_rng(0)
CLIENT = np.repeat(np.arange(6), 24)
X = RNG.normal(size=(144, 3)).astype(np.float32)
Y = (X[:, 0] * np.where(CLIENT < 3, 1.0, -1.0) + X[:, 1] > 0).astype(int)
NEW, OUT = X[:10] + 0.1, 1 - Y[:10]
ETA = 0.4


def trained(method, net=None, **options):
    steps = {"rounds": 3, "eta": ETA} | ({} if method == "dp-sgd" else {"B": 0}) | options
    return coterie.fit((X, Y), net or Torch("softmax"), client=CLIENT, method=method, rounds=steps)


def gradient(result):
    """The gradient of the mean loss of the new client's rows, as a function of one model (d,)."""
    here = result.objective(NEW, OUT)
    return lambda theta: here.gradient(theta[None])[0] / len(NEW)


def close(found, theta):
    np.testing.assert_allclose(found.models[0], theta, rtol=1e-5, atol=1e-7)


def test_fine_tuning_is_that_of_the_training():
    """Its steps, their size as the schedule has it in the end, and their rows; they were of 0.1 and of all rows."""
    halved = {"schedule": "ExponentialLR", "schedule_args": {"gamma": 0.5}}
    result = trained("fedavg", finetune=4, **halved)
    g, theta = gradient(result), result.shared[0].copy()
    for _ in range(4):
        theta -= ETA * 0.5**3 * g(theta)
    close(result.adapt(NEW, OUT), theta)
    assert np.abs(result.adapt(NEW, OUT, B=2).models[0] - theta).max() > 1e-3
    few = trained("fedavg", finetune=4, B=2, **halved)
    np.testing.assert_array_equal(few.adapt(NEW, OUT).models, few.adapt(NEW, OUT, B=2).models)


def test_fedavg_takes_steps_and_fedprox_is_held():
    for method, options, mu in (("fedavg", {}, 0.0), ("fedprox", {"mu": 0.7}, 0.7), ("dp-sgd", {"mu": 0.7}, 0.0)):
        result = trained(method, **options)  # mu of dp-sgd is the server's momentum
        g, w = gradient(result), result.shared[0]
        np.testing.assert_array_equal(w, result.client("0"))
        close(result.adapt(NEW, OUT), w)
        theta = w.copy()
        for _ in range(7):
            theta -= 0.2 * (g(theta) + mu * (theta - w))
        close(result.adapt(NEW, OUT, steps=7, eta=0.2), theta)


def test_ditto_is_pulled_to_what_is_shared(tmp_path):
    result = trained("ditto", lam=0.5, s=4)
    g, w = gradient(result), result.shared[0]
    v = w.copy()
    for _ in range(5 * 4):
        v -= ETA * (g(v) + 0.5 * (v - w))
    close(result.adapt(NEW, OUT, rounds=5), v)
    assert not np.allclose(w, result.theta.mean(axis=0), atol=1e-3)  # not where the mean of own models is
    result.save(tmp_path / "saved")
    loaded = coterie.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.adapt(NEW, OUT, rounds=5).models, result.adapt(NEW, OUT, rounds=5).models)


def test_apfl_mixes():
    result = trained("apfl", alpha=0.3)
    g, w = gradient(result), result.shared[0]
    v = w.copy()
    for _ in range(6):
        x = w.copy()
        v, x = v - 0.3 * ETA * g(0.3 * v + 0.7 * x), x - ETA * g(x)
    close(result.adapt(NEW, OUT, rounds=6), 0.3 * v + 0.7 * w)


def test_pfedme_is_in_its_envelope():
    result = trained("pfedme", lam=2.0, alpha=0.1, K=3, R=4, eta=0.1)
    g, local = gradient(result), result.shared[0].copy()
    theta = local.copy()
    for _ in range(4):
        for _ in range(3):
            theta -= 0.1 * (g(theta) + 2.0 * (theta - local))
        local -= 0.1 * 2.0 * (local - theta)
    close(result.adapt(NEW, OUT, rounds=2), theta)


def test_per_fedavg_takes_its_step():
    result = trained("per-fedavg", alpha=0.3)
    w = result.shared[0]
    close(result.adapt(NEW, OUT), w - 0.3 * gradient(result)(w))


def test_ifca_takes_the_group_with_the_least_loss():
    result = trained("ifca", Torch("mlp", args={"sizes": [3, 4, 2]}), k=2)
    here = result.objective(NEW, OUT)
    best = int(np.argmin([here.value(w[None])[0] for w in result.shared]))
    theta = result.shared[best].copy()
    for _ in range(4):
        theta -= 0.1 * gradient(result)(theta)
    found = result.adapt(NEW, OUT, steps=4, eta=0.1)
    assert found.group[0] == best
    close(found, theta)


@pytest.mark.parametrize("method", ["fedper", "lg-fedavg"])
def test_own_layers_are_trained_on_shared_ones_that_stay(method):
    net = Torch("mlp", args={"sizes": [3, 4, 2]})
    own = ["head*"] if method == "fedper" else ["dense*"]
    steps = {"rounds": 3, "eta": ETA, "B": 0}
    result = coterie.fit((X, Y), net, client=CLIENT, method=method, personal=own, rounds=steps)
    g, w = gradient(result), result.shared[0]
    sizes = result.objective(NEW).names
    mine = np.repeat([name.startswith(own[0][:-1]) for name in sizes], [*sizes.values()])
    np.testing.assert_array_equal(w[~mine], result.client("0")[~mine])
    np.testing.assert_array_equal(w[mine], result.objective(NEW).start(0)[mine])  # as any client began
    theta = w.copy()
    for _ in range(5):
        theta -= ETA * g(theta)
        theta[~mine] = w[~mine]
    close(result.adapt(NEW, OUT, rounds=5), theta)


def own_rows(result):
    return result.clients["rows"].to_numpy(dtype=float)


@pytest.mark.parametrize("attention", ["distance", "cosine"])
def test_fedamp_attends_to_the_models_that_others_had(attention):
    result = trained("fedamp", lam=0.3, alpha=0.5, sigma=2.0, attention=attention, E=3)
    g, W, w = gradient(result), result.theta, np.zeros(8)
    for t in range(4):
        if attention == "distance":
            xi = 0.5 / 2.0 * np.exp(-((W - w) ** 2).sum(1) / 2.0)
            xi /= max(xi.sum(), 1.0)
            u = (1.0 - xi.sum()) * w + xi @ W
        else:
            cos = W @ w / np.maximum(np.linalg.norm(W, axis=1) * np.linalg.norm(w), 1e-300)
            xi = np.exp(2.0 * cos)
            u = 0.5 * w + 0.5 * (xi / xi.sum()) @ W
        u = w if t == 0 else u  # it has sent nothing before
        w = u.copy()
        for _ in range(3):
            w = w - ETA * (g(w) + 0.3 / 0.5 * (w - u))
    close(result.adapt(NEW, OUT, rounds=4), w)


def test_fedfomo_goes_to_the_models_that_do_better_on_rows_kept_back():
    result = trained("fedfomo", M=6, epsilon=0.0)
    here = result.objective(NEW, OUT)
    fed = InProcess(here)
    back, rest = halves(here, fed.clients.ids + 6, 0, 0.2)  # the seventh client keeps these back
    n, w = [float(sizes(part)[0]) for part in (back, rest)], np.zeros(8)
    for _ in range(3):
        gap = np.linalg.norm(result.theta - w, axis=1)
        loss = [back.value(model[None])[0] / n[0] for model in (w, *result.theta)]
        gain = np.maximum(loss[0] - np.array(loss[1:]), 0.0) / gap
        w = w + gain / max(gain.sum(), 1e-300) @ (result.theta - w)
        w = w - ETA * rest.gradient(w[None])[0] / n[1]
    close(result.adapt(NEW, OUT, rounds=3), w)


def test_apple_learns_relations_to_the_cores_of_others():
    result = trained("apple", eta_p=0.05, mu=0.2, L=8, E=2)
    g, cores = gradient(result), result.shared
    assert np.abs(cores - result.theta).max() > 1e-3
    n = np.append(own_rows(result), len(NEW))
    p0 = n / n.sum()
    p, core = p0.copy(), np.zeros(8)
    for t in range(4):
        fade = (np.cos(np.pi * t / 8) + 1) / 2
        for _ in range(2):
            every = np.vstack([cores, core])
            grad = g(p @ every)
            core = core - ETA * p[-1] * grad
            p = p - 0.05 * (every @ grad + fade * 0.2 * (p - p0))
    close(result.adapt(NEW, OUT, rounds=4), p @ np.vstack([cores, core]))


def test_pfedgraph_mixes_models_whose_updates_go_alike():
    result = trained("pfedgraph", alpha=0.6, lam=0.0, E=2)
    g, begun = gradient(result), np.zeros(8)
    n, w = np.append(own_rows(result), len(NEW)), begun.copy()
    for t in range(3):
        every = np.vstack([result.theta, w])
        d = every - begun
        cos = d @ d[-1] / np.maximum(np.linalg.norm(d, axis=1) * np.linalg.norm(d[-1]), 1e-30)
        y = cos / (2 * 0.6) + n / n.sum()  # argmin of -cos'v + 0.6 |v - p|^2 over the simplex: a projection
        s = np.sort(y)[::-1]
        k = np.flatnonzero(s + (1 - np.cumsum(s)) / np.arange(1, 8) > 0)[-1]
        mix = np.maximum(y + (1 - s[: k + 1].sum()) / (k + 1), 0.0)
        w = w if t == 0 else mix @ every
        for _ in range(2):
            w = w - ETA * g(w)
    close(result.adapt(NEW, OUT, rounds=3), w)


@pytest.mark.parametrize("squared", [False, True])
def test_similarity_network_ties_to_neighbours_or_to_the_mean(squared):
    result = trained("similarity-network", lam=0.02, squared=squared, tau=2, network={"space": "data", "k": 2})
    g, rows = gradient(result), own_rows(result)
    per_loss = 0.02 * (rows.sum() + len(NEW)) / (len(NEW) * 7)
    for near, ties, asked in ((result.theta.mean(0)[None], 2, {}), (result.theta[[1, 4]], 1, {"neighbours": [1, 4]})):
        z = near.mean(axis=0)
        for _ in range(12):
            for _ in range(2):
                z = z - ETA * g(z)
            c, v = 2 * ETA * per_loss * ties, z
            if squared:
                z = (v + c * near.sum(0)) / (1 + c * len(near))
            else:  # Weiszfeld's iteration of min |z - v|^2 / 2 + c sum_k |z - z_k|
                for _ in range(200):
                    far = c / np.maximum(np.linalg.norm(z - near, axis=1), 1e-12)
                    z = (v + far @ near) / (1 + far.sum())
        found = result.adapt(NEW, OUT, rounds=12, **asked)
        np.testing.assert_allclose(found.models[0], z, atol=2e-5)
        assert np.abs(z - near.mean(axis=0)).max() > 1e-2
    with pytest.raises(CoterieError, match="neighbours names client '9'"):
        result.adapt(NEW, OUT, neighbours=[9])
    with pytest.raises(CoterieError, match=r"neighbours of adapt\(\) changes nothing for ditto"):
        trained("ditto").adapt(NEW, OUT, neighbours=[1])


def test_pulls_to_the_means_of_groups():
    group = np.where(CLIENT < 3, "a", "b")
    result = coterie.fit(
        (X, Y),
        Torch("softmax"),
        client=CLIENT,
        group=group,
        method="async-l2gd",
        rounds={"rounds": 3, "eta": ETA, "lam": 0.4, "alpha": 0.25, "tau": 2, "B": 0},
    )
    rows, here, g = own_rows(result), result.objective(NEW, OUT), gradient(result)
    means = [np.average(result.theta[s], axis=0, weights=rows[s]) for s in (slice(0, 3), slice(3, 6))]
    anchors = [0.75 * mean + 0.25 * np.average(result.theta, axis=0, weights=rows) for mean in means]
    anchor = min(anchors, key=lambda w: here.value(w[None])[0])
    theta = anchor.copy()
    for _ in range(5 * 2):
        theta = theta - ETA * (g(theta) + 0.4 * (theta - anchor))
    close(result.adapt(NEW, OUT, rounds=5), theta)

    net = Torch("mlp", args={"sizes": [3, 4, 2]})
    result = coterie.fit(
        (X, Y),
        net,
        client=CLIENT,
        group=group,
        method="group-penalty",
        personal=["head*"],
        rounds={"rounds": 3, "eta": ETA, "B": 0, "lam": 0.5, "mu": 0.1, "margin": 2.0, "tau": 1},
    )
    here, g = result.objective(NEW, OUT), gradient(result)
    own = np.repeat([name.startswith("head") for name in here.names], [*here.names.values()])
    c = np.stack([result.theta[:3].mean(0), result.theta[3:].mean(0)])  # all clients have as many rows
    apart = c[:, own] - c[::-1][:, own]
    far = np.linalg.norm(apart[0])
    push = -0.1 * max(2.0 - far, 0.0) / far * 0.5 * apart
    start = c.copy()
    start[:, own] -= push / 0.5
    s = int(np.argmin([here.value(w[None].astype(np.float32))[0] for w in start]))
    theta = start[s].copy()
    for _ in range(6):
        grad = g(theta.astype(np.float32)) + 0.5 * (theta - c[s])
        grad[own] += push[s]
        theta[own] -= ETA * grad[own]
    np.testing.assert_allclose(result.adapt(NEW, OUT, rounds=6).models[0], theta, atol=2e-6)


def pulled(result, lam, alpha, weight):
    """Ten steps held to the anchor of the best of groups, each with its lam and alpha."""
    here, g, codes = result.objective(NEW, OUT), gradient(result), result.clients["group"].to_numpy() - 1
    means = [np.average(result.theta[codes == c], axis=0, weights=weight[codes == c]) for c in range(len(lam))]
    everyone = np.average(result.theta, axis=0, weights=weight * (lam * alpha)[codes])
    anchors = (1 - alpha)[:, None] * np.array(means) + alpha[:, None] * everyone
    best = int(np.argmin([here.value(w[None])[0] for w in anchors]))
    theta = anchors[best].copy()
    for _ in range(10):
        theta = theta - ETA * (g(theta) + lam[best] * (theta - anchors[best]))
    return theta, best


def test_tables_of_groups_that_are_numbers_are_in_their_order(tmp_path):
    """They were in that of text, in which 10 comes before 2."""
    lam, alpha = {"10": 0.8, "2": 0.1}, {"10": 0.2, "2": 0.7}
    steps = {"rounds": 3, "eta": ETA, "lam": lam, "alpha": alpha, "tau": 2, "B": 0}
    group = np.where(CLIENT < 3, 10, 2)
    result = coterie.fit((X, Y), Torch("softmax"), client=CLIENT, group=group, method="async-l2gd", rounds=steps)
    theta, best = pulled(result, np.array([0.1, 0.8]), np.array([0.7, 0.2]), own_rows(result))
    found = result.adapt(NEW, OUT, rounds=5)
    close(found, theta)
    result.save(tmp_path / "saved")
    np.testing.assert_array_equal(coterie.load(tmp_path / "saved").adapt(NEW, OUT, rounds=5).models, found.models)
    gone = result.theta.copy()
    gone[result.clients["group"] == best + 1] = np.nan  # nobody of the best group is left
    assert found.group[0] == best and replace(result, theta=gone).adapt(NEW, OUT, rounds=5).group[0] == 1 - best


def test_others_count_by_the_weight_of_their_rows():
    """They counted by rows, whatever these weigh."""
    weigh = np.where(CLIENT < 2, 8.0, 0.5) * (1.0 + X[:, 0] ** 2)
    how = {"client": CLIENT, "weights": weigh}
    steps = {"rounds": 3, "eta": ETA, "B": 0}
    group = np.where(CLIENT < 3, "a", "b")
    more = steps | {"lam": 0.4, "alpha": 0.25, "tau": 2}
    result = coterie.fit((X, Y), Torch("softmax"), group=group, method="async-l2gd", rounds=more, **how)
    n = result.clients["weight"].to_numpy()
    assert n.max() > 5 * n.min()
    close(result.adapt(NEW, OUT, rounds=5), pulled(result, np.full(2, 0.4), np.full(2, 0.25), n)[0])

    more = steps | {"eta_p": 0.05, "mu": 0.2, "L": 8}
    result = coterie.fit((X, Y), Torch("softmax"), method="apple", rounds=more, **how)
    g, cores, n = gradient(result), result.shared, np.append(result.clients["weight"], len(NEW))
    every, p = np.vstack([cores, np.zeros(8)]), n / n.sum()
    grad = g(p @ every)
    moved = p - 0.05 * every @ grad
    every[-1] -= ETA * p[-1] * grad
    close(result.adapt(NEW, OUT, rounds=1), moved @ every)


HELD = [
    name
    for name, row in TRAINED.items()
    if row.method_class.__dict__.get("joins") == "rounds" and not row.layout and not row.normalises
]


@pytest.mark.parametrize("method", HELD)
def test_what_a_method_makes_of_a_new_client_suits_its_rows(method):
    more = {"group": np.where(CLIENT < 3, "a", "b")} if TRAINED[method].groups else {}
    steps = {"rounds": 3, "B": 0} | ({"eta": 0.1} if "eta" in TRAINED[method].hyper_parameters else {})
    net = Torch("mlp", args={"sizes": [3, 4, 2]}) if "head" in TRAINED[method].hyper_parameters else Torch("softmax")
    result = coterie.fit((X, Y), net, client=CLIENT, method=method, rounds=steps, **more)
    here, found = result.objective(NEW, OUT), result.adapt(NEW, OUT, rounds=30)
    net = here.of if isinstance(here, WideModels) else here
    assert isinstance(here, WideModels) or found.models.shape == result.theta[:1].shape
    least = min(net.value(w[None])[0] for w in result.shared)
    if method == "fedem":  # comes near the best component from equal shares
        least = here.value(result.adapt(NEW, OUT, rounds=0).models)[0]
    assert here.value(found.models)[0] < least


def test_a_method_without_a_rule_says_so():
    result = trained("weighted-averaging")
    with pytest.raises(CoterieError, match=r"weighted-averaging has no rule for a client .* by='mean'"):
        result.adapt(NEW, OUT)
    close(result.adapt(NEW, OUT, by="mean"), result.theta.mean(axis=0))
    with pytest.raises(CoterieError, match="by of adapt"):
        result.adapt(NEW, OUT, by="rule")
    with pytest.raises(CoterieError, match=r"rounds of adapt.* changes nothing for fedavg"):
        trained("fedavg").adapt(NEW, OUT, rounds=3)
