"""Rows of the contract suite: a new method adds one, here or in a file of its own that ``registry`` reads.

Most methods here are small ones, written against the contract alone; each uses one more of its parts. The exact solvers
of the library follow them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from coterie.engines import InProcess
from coterie.federation import PerCluster, PerRow, Ragged, work
from coterie.methods import clusterwise as one_a_cluster
from coterie.methods import given_strengths, hierarchical, local, own_intercept
from coterie.methods import pooled as one_for_all
from coterie.methods.aggregation.rules import Aggregator
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd.cluster_rounds import ring
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.optimisers import Adam
from coterie.methods.collaboration.optimisers import Momentum as HeavyBall
from coterie.methods.problem_and_estimates import GroupedProblem, collect
from coterie.methods.tree.client_work import reveal
from coterie.methods.tree.penalised_tree import Setup, prepare
from coterie.methods.tree.variances import State as Search
from coterie.methods.tree.variances import Variances
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Momentum
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTies, ClusterTree
from tests.engines.faults import Loopback

State = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What a federation is made of."""

    objective: Any
    clusters: np.ndarray
    weights: np.ndarray
    ids: np.ndarray

    def permuted(self, order: np.ndarray) -> Problem:
        """The same clients in another order (which must keep clusters together)."""
        return Problem(self.objective.take(order), self.clusters[order], self.weights[order], self.ids[order])


def quadratic(m: int = 23, d: int = 3, k: int = 5, seed: int = 0) -> Problem:
    """Well-conditioned quadratics in k clusters of unequal size."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, d, d))
    clusters = np.sort(np.concatenate([np.arange(min(k, m)), rng.integers(0, min(k, m), m - min(k, m))]))
    ids = rng.integers(0, 2**64, m, dtype=np.uint64)
    objective = Quadratic(root @ root.transpose(0, 2, 1) / d + np.eye(d), rng.normal(size=(m, d)))
    return Problem(objective, clusters, rng.uniform(0.5, 2.0, m), ids)


@dataclass(frozen=True)
class Case:
    """One row of the registry.

    Attributes
    ----------
    name : str
    run : callable
        ``run(fed) -> dict of arrays``: the whole method.
    stream : callable, optional
        ``stream(fed, state=None)``: a generator of states, each with all that is needed to go on from it.
    finish : callable
        ``finish(fed, state) -> dict of arrays``: results from a state of the stream.
    problem : callable
        Makes the problem, the same at every call. It is also called with ``m=1``.
    per_client : tuple of str
        Results whose leading axis is clients.
    optimum : callable, optional
        ``optimum(problem) -> dict``: what ``reach`` must reach within 1e-6.
    reach : callable, optional
        The run that reaches it, where that takes longer than ``run``, which other laws repeat many times.
    tolerance : float
        Relative, for other partitions into sites (1e-12 in float64, 1e-6 in float32).
    random : bool
        Whether another seed gives another result.
    """

    name: str
    run: Callable[[Any], Mapping[str, Any]]
    stream: Callable[..., Iterator[State]] | None = None
    finish: Callable[[Any, State], Mapping[str, Any]] = lambda fed, state: state
    problem: Callable[..., Problem] = quadratic
    per_client: tuple[str, ...] = ()
    optimum: Callable[[Problem], Mapping[str, Any]] | None = None
    reach: Callable[[Any], Mapping[str, Any]] | None = None
    tolerance: float = 1e-12
    random: bool = False


ENGINES: dict[str, Callable[..., Any]] = {}
"""Engines beyond this process, which their own tests put here: called like :class:`Loopback`."""


def make_federation(engine: str, problem: Problem, partition: Any = 1, seed: int = 7, **options: Any) -> Any:
    """A federation by engine name; ``partition`` (a number, or clients of each site) is for engines with sites.

    Engines: "inprocess"; "blocks" (in process, 3 clients at a time in 2 threads); "loopback".
    Further options are the engine's own: ``faults``, ``retries``, ``folder``, ``tap``...
    """
    data = (problem.objective, problem.clusters, problem.weights, problem.ids)
    if engine == "inprocess":
        return InProcess(*data, seed=seed, **options)
    if engine == "blocks":
        return InProcess(*data, seed=seed, **{"block": 3, "threads": 2} | options)
    return ENGINES.get(engine, Loopback)(*data, seed=seed, sites=partition, **options)


def last(states: Iterator[State]) -> State:
    """The last state of a stream."""
    return collections.deque(states, maxlen=1)[0]


def streamed(name: str, stream: Callable[..., Iterator[State]], to_optimum: int = 0, **fields: Any) -> Case:
    """A row for a method that is a generator of states; ``to_optimum`` rounds reach its optimum, where it has one."""
    finish = fields.get("finish", Case.finish)

    def run(fed: Any, **rounds: int) -> Mapping[str, Any]:
        return finish(fed, last(stream(fed, **rounds)))

    return Case(name, run, stream, reach=partial(run, rounds=to_optimum) if to_optimum else None, **fields)


def dim(fed: Any) -> int:
    """Number of parameters, known only to the sites."""
    found = fed.ask(shape, to=[0])
    return int(found["d"][0]) if found else 3


@work
def shape(site):
    return {"d": np.full(len(site), site.objective.dim)}


# -- pooled gradient descent: means are ratios of two sums


@work
def weighted_gradient(site, x):
    site.count(gradients=len(site))
    return {"g": site.weights[:, None] * site.objective.gradient(x), "w": site.weights}


def pooled(fed, state=None, rounds=8):
    state = state or {"t": 0, "x": np.zeros(dim(fed))}
    while state["t"] < rounds:
        sums = fed.total(weighted_gradient, x=state["x"])
        x = state["x"] - 0.3 * sums["g"] / sums["w"] if sums else state["x"]
        state = {"t": state["t"] + 1, "x": x}
        yield state


def pooled_optimum(problem):
    w, q = problem.weights, problem.objective
    return {"x": np.linalg.solve(np.einsum("m,mij->ij", w, q.A), w @ q.b)}


# -- personal models in state, tied to a shared one


@work
def personal_step(site, x, eta, gamma):
    u = site.state.get("u", np.zeros((len(site), len(x))))
    site.state["u"] = u - eta * (site.objective.gradient(u) + gamma * (u - x))
    site.state["steps"] = site.state.get("steps", np.zeros(len(site), np.int64)) + 1
    site.count(gradients=len(site))
    return {"u": site.state["u"], "moved": np.linalg.norm(site.state["u"] - u, axis=1)}


@work
def personal(site, d):
    return {"u": site.state.get("u", np.zeros((len(site), d)))}


def tied(fed, state=None, steps=6):
    state = state or {"t": 0, "x": np.zeros(dim(fed)), "moved": 0.0}
    while state["t"] < steps:
        sums = fed.total(personal_step, x=state["x"], eta=0.2, gamma=0.5)
        x, moved = (sums["u"] / sums.count, sums["moved"] / sums.count) if sums else (state["x"], 0.0)
        state = {"t": state["t"] + 1, "x": x, "moved": moved}
        yield state


def with_personal(fed, state):
    return {**state, **fed.ask(personal, d=len(state["x"]))}


# -- every client is the main one once: all averages in one exchange, with repeated clients


@work
def collaborator_gradient(site, x, w):
    return {"g": w[:, None] * site.objective.gradient(x)}


def main_clients(fed, state=None, steps=4):
    n = len(fed.clients)
    state = state or {"t": 0, "X": np.zeros((n, dim(fed)))}
    i, k = np.divmod(np.arange(n * n), n)
    w = np.where(i == k, 0.5, 0.5 / max(n - 1, 1))
    while state["t"] < steps:
        sums = fed.total(collaborator_gradient, to=k, by=i, groups=n, x=PerRow(state["X"][i]), w=PerRow(w))
        state = {"t": state["t"] + 1, "X": state["X"] - 0.2 * sums["g"] if sums else state["X"]}
        yield state


# -- clusters with schedules of their own


@work
def cluster_steps(site, W, steps):
    x = W[site.clusters]
    for t in range(steps.max()):
        x = x - (0.2 * (t < steps[site.clusters]))[:, None] * site.objective.gradient(x)
    return {"x": site.weights[:, None] * x, "w": site.weights}


def clusterwise(fed, state=None, rounds=4):
    k = fed.clients.k
    state = state or {"t": 0, "W": np.zeros((k, dim(fed)))}
    while state["t"] < rounds:
        steps = 1 + (np.arange(k) + state["t"]) % 3
        sums = fed.total(cluster_steps, by="cluster", W=PerCluster(state["W"]), steps=PerCluster(steps))
        W = state["W"].copy()
        if sums:
            here = sums.count > 0
            W[here] = sums["x"][here] / sums["w"][here, None]
        state = {"t": state["t"] + 1, "W": W}
        yield state


# -- heads with shapes of their own: the engine calls the work once for each cluster


@work
def head_gradient(site, x, head):
    width = head.shape[1]
    z = site.objective.gradient(x)[:, :1] - head[site.clusters]
    return {"shared": site.objective.gradient(x) + width, "head": -z, "n": np.ones(len(site))}


def heads(fed, state=None, steps=4):
    k = fed.clients.k
    state = state or {"t": 0, "x": np.zeros(dim(fed)), **{f"head{j}": np.zeros(1 + j % 3) for j in range(k)}}
    while state["t"] < steps:
        parts = [state[f"head{j}"] for j in range(k)]
        sums = fed.total(head_gradient, by="cluster", x=state["x"], head=PerCluster(parts))
        x = state["x"]
        for j in np.flatnonzero(sums.count):
            parts[j] = parts[j] - 0.1 * sums["head"][j] / sums["n"][j]
            x = x - 0.01 * sums["shared"][j] / sums["n"][j]
        state = {"t": state["t"] + 1, "x": x, **{f"head{j}": p for j, p in enumerate(parts)}}
        yield state


# -- bytes of different lengths in both directions, and error feedback as ordinary state


@work
def packed_gradient(site, x, hint):
    """Coordinates above a threshold of the client, in float64 bytes; what is left out is kept for the next time."""
    e = site.state.get("e", np.zeros((len(site), len(x))))
    g = site.objective.gradient(x) + e
    send = np.abs(g) >= 0.5 * np.abs(g).max(axis=1, keepdims=True)
    site.state["e"] = np.where(send, 0.0, g)
    heard = np.array([hint[r].sum() for r in range(len(site))], dtype=np.int64)
    rows = [g[r][send[r]].tobytes() for r in range(len(site))]
    return {"mask": send, "payload": Ragged.of(rows), "heard": heard}


def packed(fed, state=None, steps=5):
    n = len(fed.clients)
    state = state or {"t": 0, "x": np.zeros(dim(fed)), "heard": np.zeros(n, np.int64)}
    while state["t"] < steps:
        hints = Ragged.of([bytes([1, 2, 3][: (c + state["t"]) % 4]) for c in fed.clients.clusters])
        replies = fed.ask(packed_gradient, x=state["x"], hint=PerRow(hints))
        x, heard = state["x"], state["heard"].copy()
        if replies:
            g = np.zeros(replies["mask"].shape)
            g[replies["mask"]] = np.frombuffer(replies["payload"].values.tobytes(), np.float64)
            x = x - 0.2 * g.mean(axis=0)
            heard[replies.rows] += replies["heard"]
        state = {"t": state["t"] + 1, "x": x, "heard": heard}
        yield state


# -- random minibatches, coins and shuffles, keyed by client and by the method's own step


@work
def random_gradient(site, x, step):
    keep = site.uniform(len(x), step, "coordinates") < 0.5
    noise = np.stack([site.generator(i, step, "noise").normal(size=len(x)) for i in range(len(site))])
    return {"g": keep * (site.objective.gradient(x) + 0.1 * noise)}


def stochastic(fed, state=None, steps=5):
    state = state or {"t": 0, "x": np.zeros(dim(fed))}
    while state["t"] < steps:
        sums = fed.total(random_gradient, x=state["x"], step=state["t"])
        x = state["x"] - 0.2 * sums["g"] / sums.count if sums else state["x"]
        state = {"t": state["t"] + 1, "x": x}
        yield state


# -- single precision, in nested messages


@work
def narrow_gradient(site, model):
    g = site.objective.gradient(model["layers"][0]) * model["scale"]
    return {"g": g.astype(np.float32)}


def narrow(fed, state=None, steps=5):
    state = state or {"t": 0, "x": np.zeros(dim(fed), np.float32)}
    while state["t"] < steps:
        sums = fed.total(narrow_gradient, model={"layers": [state["x"]], "scale": 0.5, "name": "x"})
        x = state["x"] - np.float32(0.2) * sums["g"] / np.float32(sums.count) if sums else state["x"]
        state = {"t": state["t"] + 1, "x": x}
        yield state


# -- the exact solvers: rows instead of quadratics, a tree of two levels under the root


def grouped(m: int = 23, k: int = 5, family: str = "gaussian", seed: int = 0) -> Problem:
    """Rows of m clients that differ, in k clusters of unequal size; every client has some rows."""
    rng = np.random.default_rng(seed)
    k = min(k, m)
    clusters = np.sort(np.concatenate([np.arange(k), rng.integers(0, k, m - k)]))
    counts = rng.integers(4, 9, m)
    stops = np.cumsum(counts)
    X = np.c_[np.ones(stops[-1]), rng.normal(size=stops[-1])]
    beta = np.array([0.3, -0.5]) + 0.8 * rng.normal(size=(m, 2)) + 0.5 * rng.normal(size=(k, 2))[clusters]
    eta = np.sum(X * np.repeat(beta, counts, axis=0), axis=1)
    y = {
        "gaussian": eta + rng.normal(size=len(eta)),
        "binomial": (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
    }[family]
    glm = GLM(X, y, np.zeros(len(y)), np.ones(len(y)), stops - counts, stops, family)
    return Problem(glm, clusters, np.ones(m), rng.integers(0, 2**64, m, dtype=np.uint64))


def fit_problem(fed: Any, family: str) -> GroupedProblem:
    """Both columns personal, the clusters under one root."""
    return GroupedProblem(ClusterTree((np.zeros(fed.clients.k, dtype=np.int64),)), family, np.arange(2), 0)


def found(f: Any) -> dict[str, Any]:
    """What a fit gives, as arrays."""
    out = {"root": f.root, "cov": f.root_cov, "clusters": f.nodes[0], "client": f.client, "client_cov": f.client_cov}
    return out | {"D": f.D_client[0], "sigma2": np.array(f.sigma2)}


def exact(
    name: str, fit: Callable[..., Any], family: str = "gaussian", tolerance: float = 1e-10, **options: Any
) -> Case:
    """A row for a solver ``fit(fed, problem, **options)``."""

    def run(fed: Any) -> Mapping[str, Any]:
        return found(fit(fed, fit_problem(fed, family), **options))

    problem = partial(grouped, family=family)
    return Case(f"{name}-{family}", run, problem=problem, per_client=("client", "client_cov"), tolerance=tolerance)


def search(fed: Any, state: State | None = None) -> Iterator[State]:
    """The search for variances, a step at a time; the agreed units travel in its state."""
    problem = fit_problem(fed, "gaussian")
    setup = prepare(fed, problem.tree, "gaussian", problem.personal, 0) if not state else setup_of(problem, state)
    structures = hierarchical.structures("diagonal", problem)
    kept = {f.name: getattr(setup, f.name) for f in fields(setup) if f.name not in ("tree", "family")}
    at = Search(**state["search"]) if state else None
    for i, reached in enumerate(Variances(setup, structures).run(fed, at)):
        if i or not state:  # a resumed run begins with the state it was given
            yield {"setup": kept, "search": asdict(reached)}


def setup_of(problem: GroupedProblem, state: State) -> Setup:
    """What the sites agreed on, from a state."""
    return Setup(tree=problem.tree, family=problem.family, **state["setup"])


def searched(fed: Any, state: State) -> dict[str, Any]:
    """Coefficients at the variances of a state."""
    problem = fit_problem(fed, "gaussian")
    variances = Variances(setup_of(problem, state), hierarchical.structures("diagonal", problem))
    at = Search(**state["search"])
    _, s, sigma2 = variances.evaluate(fed, at.x, at.u)
    return found(collect(fed, variances.setup, s, variances.factors(at.x)[0], sigma2))


def everyones_least_squares(problem: Problem) -> dict[str, Any]:
    """Least squares over all rows, and at each client."""
    o = problem.objective
    own = [np.linalg.lstsq(o.X[a:b], o.y[a:b])[0] for a, b in zip(o.starts, o.stops, strict=True)]
    return {"root": np.linalg.lstsq(o.X, o.y)[0], "client": np.array(own)}


def pooled_least_squares(problem: Problem) -> dict[str, Any]:
    """Least squares over all rows, for every client."""
    root = everyones_least_squares(problem)["root"]
    return {"root": root, "client": np.tile(root, (len(problem.ids), 1))}


def tied_least_squares(problem: Problem) -> dict[str, Any]:
    """The minimiser of (2.3) with gamma = 2 and lambda = 3, from one dense system over clients, clusters and root."""
    o, m, k = problem.objective, len(problem.ids), int(problem.clusters.max()) + 1
    H, h = np.zeros((m + k + 1, 2, m + k + 1, 2)), np.zeros((m + k + 1, 2))
    for i, (a, b) in enumerate(zip(o.starts, o.stops, strict=True)):
        H[i, :, i] += o.X[a:b].T @ o.X[a:b]
        h[i] = o.X[a:b].T @ o.y[a:b]
    ties = [(i, m + j, 2.0) for i, j in enumerate(problem.clusters)] + [(m + j, m + k, 3.0) for j in range(k)]
    for a, b, strength in ties:
        for x, y, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            H[x, :, y] += sign * strength * np.eye(2)
    size = 2 * (m + k + 1)
    theta = np.linalg.solve(H.reshape(size, size), h.ravel()).reshape(-1, 2)
    return {"client": theta[:m], "clusters": theta[m : m + k], "root": theta[-1]}


EXACT = [
    replace(exact("exact-local", local.fit), optimum=everyones_least_squares),
    replace(exact("exact-pooled", one_for_all.fit), optimum=pooled_least_squares),
    replace(exact("exact-given", given_strengths.given, gamma=2.0, lam=3.0), optimum=tied_least_squares),
    exact("exact-own-intercept", own_intercept.fit, tolerance=1e-6),
    exact("exact-clusterwise", one_a_cluster.fit),
    exact("exact-hierarchical", hierarchical.fit, tolerance=1e-6),
    exact("exact-local", local.fit, "binomial", tolerance=1e-8),
    exact("exact-given", given_strengths.given, "poisson", tolerance=1e-8, gamma=2.0, lam=3.0),
    exact("exact-hierarchical", hierarchical.fit, "binomial", tolerance=1e-5, covariance="two"),
    streamed(
        "exact-search", search, finish=searched, problem=grouped, per_client=("client", "client_cov"), tolerance=1e-6
    ),
]

# -- known clusters over rounds


def own_ties(fed: Any, nested: bool = False) -> ClusterTies:
    """Strengths that go with a client's label, not with its place; ``nested``: of pairs of clusters, too."""
    gamma, k = 0.3 + (fed.clients.ids % np.uint64(97)).astype(np.float64) / 97.0, fed.clients.k
    if not nested:
        return ClusterTies.of(fed.clients.clusters, k, gamma, None, 0.4)
    pairs = np.arange(k) // 2
    return ClusterTies.of(fed.clients.clusters, k, gamma, 2.0, None, (pairs, np.zeros(pairs[-1] + 1, dtype=np.int64)))


def l2gd(fed: Any, state: State | None = None, nested: bool = False, **options: Any) -> Iterator[State]:
    """Algorithm 1, sixteen steps, each a state."""
    k = fed.clients.k
    p = np.full(k, 0.4)
    options |= {"q": (np.full(k, 0.3),)} if nested else {}
    method = AsyncL2GD(own_ties(fed, nested), 0.2, p, fractions(0.2, p), 0.02, compiled=False, **options)
    yield from method.run(fed, range(1, 17), state)


def al2sgd(fed: Any, state: State | None = None, nested: bool = False, **options: Any) -> Iterator[State]:
    """Algorithm 2, sixteen steps, each a state."""
    k = fed.clients.k
    p = np.full(k, 0.4)
    momentum = Momentum(0.3, 0.4, 0.95, 0.01, 0.005)
    options |= {"q": (np.full(k, 0.3),)} if nested else {}
    method = AsyncAL2SGD(own_ties(fed, nested), 0.2, p, fractions(0.2, p), momentum, 0.2, **options)
    yield from method.run(fed, range(1, 17), state)


def with_theta(fed: Any, state: State) -> dict[str, Any]:
    """Where the clients are, and what was sent on the way."""
    replies = fed.ask(reveal)
    return {"theta": replies["theta"], "between": np.array(state["between"]), "within": np.array(state["within"])}


def rounds(name: str, stream: Callable[..., Iterator[State]], **options: Any) -> Case:
    """A row for a method over rounds: on rows where it draws some, else on quadratics."""
    draws = bool(options.get("batch"))
    problem = grouped if draws else quadratic
    method = partial(stream, **options)
    return streamed(name, method, finish=with_theta, problem=problem, per_client=("theta",), random=draws)


ROUNDS = [
    rounds("async-l2gd", l2gd),
    rounds("async-l2gd-steps", l2gd, closed=False),
    rounds("async-l2gd-rows", l2gd, batch=2),
    rounds("async-al2sgd", al2sgd, batch=0),
    rounds("async-al2sgd-rows", al2sgd, batch=1),
    rounds("async-al2sgd-ring", al2sgd, batch=1, network=ring),
    rounds("async-l2gd-nested", l2gd, nested=True),
    rounds("async-al2sgd-nested", al2sgd, batch=1, nested=True),
]

# -- one main client and its collaborators: some clients are main ones, all others may collaborate with each


def helped(fed: Any) -> Collaborators:
    """The first three clients are main ones; of all others, every second one collaborates, with unequal weights."""
    m = len(fed.clients)
    order = np.argsort(fed.clients.ids)  # not by position, which differs where clients come in another order
    main, n = order[:3], min(m, 3)
    pairs = [(i, k) for i in range(n) for k in order[i % 2 :: 2] if k != main[i]]
    of, who = (np.array(a, dtype=np.int64) for a in (zip(*pairs, strict=True) if pairs else ((), ())))
    tau = 1.0 + np.argsort(order)[who] % 3
    return Collaborators(main, of, who, tau / np.bincount(of, tau, minlength=n)[of])


def collaborative(method: Any, fed: Any, state: State | None = None, steps: int = 5, **options: Any) -> Iterator[State]:
    """Algorithms 1 to 3 on whatever the sites hold."""
    over = {"beta": 0.3} if method is BiasCorrection else {}
    over |= {name: options.pop(name) for name in ("optimiser", "first", "keep") if name in options}
    d = state["x"].shape[1] if state else dim(fed)
    exchange = dict(pairs=helped(fed), metric=Metric.plain(d), **options)
    run = method(**exchange, alpha=0.6, eta=0.1, **over)
    yield from run.run(fed, range(1, steps + 1), state)


def collaboration(name: str, method: Any, draws: bool = False, **options: Any) -> Case:
    """A row for a method of a main client: on rows where it draws some, else on quadratics."""
    stream = partial(collaborative, method, batch=2 if draws else 0, **options)
    problem = grouped if draws else quadratic
    random = draws or "participation" in options

    def finish(fed: Any, state: State) -> dict[str, Any]:
        return {"x": state["x"], "t": state["t"], "quarantined": state["quarantined"].max()}

    return streamed(name, stream, finish=finish, problem=problem, random=random)


COLLABORATION = [
    collaboration("weighted-averaging", WeightedAveraging),
    collaboration("weighted-averaging-rows", WeightedAveraging, draws=True),
    collaboration("bias-correction", BiasCorrection, first="zero", optimiser=HeavyBall()),
    collaboration("bias-correction-rows", BiasCorrection, draws=True, first=3, optimiser=Adam()),
    collaboration("bias-correction-local", BiasCorrection, draws=True, local=3, keep=0.2),
    collaboration("bias-correction-memory", BiasCorrection, draws=True, remember=True),
    collaboration("bias-correction-rules", BiasCorrection, aggregator=Aggregator()),
]

CASES = [
    streamed("pooled", pooled, optimum=pooled_optimum, to_optimum=80),
    streamed("tied", tied, finish=with_personal, per_client=("u",)),
    streamed("main-clients", main_clients, per_client=("X",)),
    streamed("clusterwise", clusterwise),
    streamed("heads", heads),
    streamed("packed", packed, per_client=("heard",)),
    streamed("stochastic", stochastic, random=True),
    streamed("narrow", narrow, tolerance=1e-6),
    *EXACT,
    *ROUNDS,
    *COLLABORATION,
]
