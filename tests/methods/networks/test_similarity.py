"""Who is alike, in the data, feature and model space: over exchanges, in process and through sites."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.networks import client_embeddings
from coterie.methods.networks.similarity import Similarity
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import pack
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTree
from coterie.relations.network import Network
from tests.engines.faults import Loopback
from tests.messages import names
from tests.methods.known_clusters import table
from tests.relations.test_network import blobs

SPACES = [
    {"space": "model"},
    {"space": "model", "distance": "predictions", "probes": 20},
    {"space": "data", "features": 64},
    {"space": "data", "response": False, "width": 1.5},
    {"space": "feature"},
    {"space": "feature", "distance": "frobenius", "response": True},
    {"space": "feature", "distance": "bures", "means": True},
    {"space": "feature", "distance": "mean"},
]
named = pytest.mark.parametrize("options", SPACES, ids=lambda o: "-".join(str(v) for v in o.values()))


def federations(glm, clusters):
    ids = np.arange(1, len(clusters) + 1, dtype=np.uint64) * 7919
    yield InProcess(glm, clusters, ids=ids)
    yield InProcess(glm, clusters, ids=ids, block=3, threads=2)
    yield Loopback(glm, clusters, ids=ids, sites=[[19, 3, 8], list(range(9, 19)), [0, 1, 2, 4, 5, 6, 7]])


def points(fed, space="model", problem=None, **options):
    return Similarity.of({"space": space, **options}).points(fed, problem)


def similarity_network(fed, space="model", problem=None, **options):
    return Similarity.of({"space": space, **options}).network(fed, problem)


def problem(glm, clusters):
    return GroupedProblem(
        ClusterTree((np.zeros(clusters.max() + 1, dtype=np.int64),)), glm.family, np.arange(glm.p), None
    )


def of_rows(clients, y=None, weights=None):
    """A GLM of the clients' rows."""
    counts = np.array([len(c) for c in clients])
    stops, X = np.cumsum(counts), np.concatenate(clients).astype(np.float64)
    y = np.zeros(len(X)) if y is None else y
    return GLM(X, y, np.zeros(len(X)), np.ones(len(X)) if weights is None else weights, stops - counts, stops)


# -- everywhere the same


@named
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_engines_agree(options, family):
    glm, clusters = table(family, rows=(0, 9))
    asked = Similarity.of(options | {"k": 3, "weighted": True})
    feds = list(federations(glm, clusters))
    want = asked.network(feds[0], problem(glm, clusters))
    for fed in feds[1:]:
        network = asked.network(fed, problem(glm, clusters))
        np.testing.assert_array_equal(network.edges, want.edges)
        np.testing.assert_allclose(network.weight, want.weight, rtol=1e-6)
    assert want.components.max() == 0
    assert np.isfinite(asked.points(feds[0], problem(glm, clusters))).all()


@named
def test_units_of_columns_do_not_matter(options):
    glm, clusters = table(rows=(3, 9))
    unit, origin = np.array([100.0, 0.01, 1.0]), np.array([5.0, -3.0, 0.0]) * (options["space"] != "model")
    other = GLM((glm.X + origin) * unit, glm.y, glm.offset, glm.weights, glm.starts, glm.stops)
    found = [points(InProcess(g, clusters), problem=problem(g, clusters), **options) for g in (glm, other)]
    D = [np.linalg.norm(p[:, None] - p, axis=2) for p in found]
    np.testing.assert_allclose(D[0], D[1], atol=1e-6)


def test_rows_stay_at_home():
    glm, clusters = table(rows=(20, 30))
    *_, fed = federations(glm, clusters)
    sent = []
    fed._tap = lambda direction, site, data: sent.append((direction, len(data)))
    points(fed, "data", features=32)
    up = sum(size for direction, size in sent if direction == "up")
    assert up < 8 * len(glm) * 32 + 20_000  # embeddings, and some sums


# -- data


def test_distances_of_embeddings_are_maximum_mean_discrepancies():
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(30, 2)) + shift for shift in (0.0, 0.0, 1.0)]
    glm, width = of_rows(clients), 1.3
    fed = InProcess(glm)
    scale = client_embeddings.agree(fed)
    z = [(c - scale.centre) * scale.unit for c in clients]

    def kernel(a, b):
        return np.exp(-((a[:, None] - b) ** 2).sum(axis=2) / (2 * width**2)).mean()

    found = points(fed, "data", features=40_000, width=width, response=False)
    for i in range(3):
        for j in range(3):
            want = kernel(z[i], z[i]) + kernel(z[j], z[j]) - 2 * kernel(z[i], z[j])
            assert ((found[i] - found[j]) ** 2).sum() == pytest.approx(want, abs=0.02)


def test_the_width_is_about_the_median_distance_of_rows():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2000, 6))
    fed = InProcess(of_rows(np.split(rows, 20)))
    scale = client_embeddings.agree(fed)
    s = fed.total(client_embeddings.radii, **scale.message)
    z = (rows - scale.centre) * scale.unit
    want = np.median(np.linalg.norm(z[:1000] - z[1000:], axis=1))
    assert np.sqrt(2 * s["square"] / s["rows"]) == pytest.approx(want, rel=0.05)


def test_the_response_tells_clients_apart_where_columns_do_not():
    rng = np.random.default_rng(2)
    X, known = rng.normal(size=(40, 50, 1)), np.arange(40) % 2
    y = (X[..., 0] * np.where(known, 2.0, -2.0)[:, None] + 0.3 * rng.normal(size=(40, 50))).ravel()
    fed = InProcess(of_rows(list(X), y))
    assert similarity_network(fed, "data", k=5).against(known)["spectral"] == 1.0
    assert similarity_network(fed, "data", k=5, response=False).against(known)["spectral"] < 0.2


# -- features


def own(clients, prior):
    """Shrunk covariances as the formula has them, in standard units."""
    rows = np.concatenate(clients)
    z = [(c - rows.mean(axis=0)) / rows.std(axis=0) for c in clients]
    free = np.array([max(len(c) - 1, 0) for c in clients])
    scatter = np.array([(c - c.mean(axis=0)).T @ (c - c.mean(axis=0)) for c in z])
    pooled = scatter.sum(axis=0) / free.sum()
    return [(s + prior * pooled) / (f + prior) for s, f in zip(scatter, free, strict=True)]


def of_matrix(S, f):
    values, vectors = np.linalg.eigh(S)
    return vectors @ np.diag(f(values)) @ vectors.T


def test_distances_of_features_are_those_of_shrunk_covariances():
    rng = np.random.default_rng(3)
    clients = [rng.normal(size=(n, 3)) @ rng.normal(size=(3, 3)) for n in (12, 7, 1, 4)]
    fed, S = InProcess(of_rows(clients)), own(clients, 2.5)
    whole = client_embeddings.gaussians(fed, 2.5)
    literal = {
        "frobenius": lambda A, B: np.linalg.norm(A - B),
        "log-euclidean": lambda A, B: np.linalg.norm(of_matrix(A, np.log) - of_matrix(B, np.log)),
        "bures": lambda A, B: np.linalg.norm(of_matrix(A, np.sqrt) - of_matrix(B, np.sqrt)),
    }
    for distance, of in literal.items():
        z = points(fed, "feature", distance=distance, prior=2.5)
        for i in range(4):
            for j in range(4):
                assert np.linalg.norm(z[i] - z[j]) == pytest.approx(of(S[i], S[j]), abs=1e-9)
    i, j = np.divmod(np.arange(16), 4)
    root = [of_matrix(A, np.sqrt) for A in S]
    cross = [
        np.trace(of_matrix(root[a] @ S[b] @ root[a], lambda v: np.sqrt(np.abs(v)))) for a, b in zip(i, j, strict=True)
    ]
    square = np.array([np.trace(S[a]) + np.trace(S[b]) for a, b in zip(i, j, strict=True)]) - 2 * np.array(cross)
    np.testing.assert_allclose(whole.bures()(i, j) ** 2, square, atol=1e-9)


def test_roots_come_close_to_bures_wasserstein_distances():
    rng = np.random.default_rng(4)
    G = rng.normal(size=(200, 4, 3)) * 10.0 ** rng.uniform(-2, 1, size=(200, 1, 3))
    clients = client_embeddings.Gaussians(np.zeros((200, 0)), np.einsum("nab,ncb->nac", G, G) + 1e-6 * np.eye(4))
    z = clients.points("bures")
    i, j = np.triu_indices(200, 1)
    root, exact = np.linalg.norm(z[i] - z[j], axis=1), clients.bures()(i, j)
    assert (exact <= root + 1e-9).all()
    assert (root <= np.sqrt(2.0) * exact + 1e-9).all()


def test_candidates_of_roots_hold_nearly_all_neighbours_by_bures_wasserstein():
    rng = np.random.default_rng(5)
    clients = [rng.normal(size=(15, 4)) @ rng.normal(size=(4, 4)) for _ in range(150)]
    fed = InProcess(of_rows(clients))
    network = similarity_network(fed, "feature", distance="bures", k=5, connected=False)
    i, j = np.divmod(np.arange(150**2), 150)
    D = client_embeddings.gaussians(fed).bures()(i, j).reshape(150, 150) + np.diag(np.full(150, np.inf))
    near = np.argsort(D, axis=1)[:, :5]
    want = {(min(a, b), max(a, b)) for a in range(150) for b in near[a]}
    assert len({tuple(e) for e in network.edges.tolist()} & want) >= 0.99 * len(want)


def test_a_client_with_one_row_has_the_covariance_of_all():
    rng = np.random.default_rng(6)
    clients = [rng.normal(size=(n, 2)) * s for n, s in ((30, 1.0), (30, 3.0), (1, 1.0), (0, 1.0))]
    g = client_embeddings.gaussians(InProcess(of_rows(clients)))
    np.testing.assert_allclose(g.S[2], g.S[3])
    z = g.points()
    assert np.linalg.norm(z[2] - z[0]) < np.linalg.norm(z[1] - z[0])


@pytest.mark.parametrize("distance", ["log-euclidean", "frobenius", "bures"])
def test_constant_features_count_for_nothing_or_are_shrunk(distance):
    rng = np.random.default_rng(7)
    clients = [np.c_[np.ones(20), rng.normal(size=(20, 2)), np.full(20, c)] for c in range(6)]
    clients[0][:, 1] = 0.0  # at one client
    plain = [c[:, 1:3] for c in clients]
    some, all_ = (points(InProcess(of_rows(c)), "feature", distance=distance, prior=3.0) for c in (plain, clients))
    D = [np.linalg.norm(z[:, None] - z, axis=2) for z in (some, all_)]
    assert np.isfinite(D[0]).all()
    np.testing.assert_allclose(D[0], D[1], atol=1e-9)
    assert D[0][0, 1:].min() > 0.0


def test_a_column_that_differs_between_clients_only_counts_for_the_mean():
    clients = [np.full((5, 1), float(c)) for c in (1, 1, 2)]
    z = points(InProcess(of_rows(clients)), "feature", distance="mean")
    assert z[0] == z[1] != z[2]
    with pytest.raises(CoterieError, match=names("column varies within client")):
        points(InProcess(of_rows(clients)), "feature")


def test_a_singular_covariance_has_no_logarithm():
    with pytest.raises(CoterieError, match="clients 1 are singular"):
        client_embeddings.Gaussians(np.zeros((2, 2)), np.array([np.eye(2), np.diag([1.0, 0.0])])).points()


# -- models


def test_models_are_those_held_at_the_pooled_one():
    glm, clusters = table(rows=(2, 9))
    fed, it = InProcess(glm, clusters), problem(glm, clusters)
    u = client_embeddings.model_points(fed, it, prior=2.0)
    _, metric = client_embeddings.around_pooled(fed, it)
    H = np.linalg.inv(metric.preconditioner)
    for i in range(len(glm)):
        rows = slice(glm.starts[i], glm.stops[i])
        X, w = glm.X[rows], glm.weights[rows]
        A = X.T @ (w[:, None] * X) + 2.0 * H
        theta = np.linalg.solve(A, X.T @ (w * (glm.y - glm.offset)[rows]) + 2.0 * H @ metric.at)
        np.testing.assert_allclose(metric.theta(u[i]), theta, atol=1e-9)
    np.testing.assert_allclose(points(fed, "model", problem=it, models=metric.theta(u)), u, atol=1e-9)


def test_distances_of_models_are_differences_in_mean_loss():
    glm, clusters = table(rows=(20, 30))
    fed, it = InProcess(glm, clusters), problem(glm, clusters)
    z = points(fed, "model", problem=it)
    _, metric = client_embeddings.around_pooled(fed, it)
    i, j = metric.theta(z[3]), metric.theta(z[11])
    eta = glm.X @ (i - j)
    assert ((z[3] - z[11]) ** 2).sum() == pytest.approx(np.average(eta**2, weights=glm.weights), rel=1e-6)


def test_predictions_are_compared_on_shared_probes():
    glm, clusters = table("binomial", rows=(4, 9))
    fed, it = InProcess(glm, clusters), problem(glm, clusters)
    probes = np.random.default_rng(0).normal(size=(9, 3))
    _, metric = client_embeddings.around_pooled(fed, it)
    theta = metric.theta(points(fed, "model", problem=it))
    want = 1.0 / (1.0 + np.exp(-theta @ probes.T)) / 3.0
    asked = {"problem": it, "distance": "predictions", "probes": probes}
    np.testing.assert_allclose(points(fed, "model", **asked), want, atol=1e-9)
    np.testing.assert_allclose(points(fed, "model", models=theta, **asked), want, atol=1e-9)


def test_probes_have_the_moments_of_all_rows_and_are_the_same_for_a_seed():
    rng = np.random.default_rng(8)
    rows = np.c_[np.ones(600), rng.normal(size=(600, 2)) @ np.array([[1.0, 0.5], [0.0, 2.0]]) + 3.0]
    fed = InProcess(of_rows(np.split(rows, 6)))
    probes = client_embeddings.draw_probes(fed, 20_000, seed=1)
    np.testing.assert_allclose(probes[:, 0], 1.0, atol=1e-6)
    np.testing.assert_allclose(probes.mean(axis=0), rows.mean(axis=0), atol=0.06)
    np.testing.assert_allclose(np.cov(probes.T), np.cov(rows.T, ddof=0), atol=0.12)
    np.testing.assert_array_equal(probes[:5], client_embeddings.draw_probes(fed, 5, seed=1))


def test_models_find_groups_of_coefficients():
    rng = np.random.default_rng(9)
    known = np.arange(36) % 3
    beta = np.array([[2.0, 0.0], [-1.0, 1.5], [0.0, -2.0]])[known]
    X = rng.normal(size=(36, 25, 2))
    y = np.einsum("nri,ni->nr", X, beta).ravel() + rng.normal(size=900)
    glm = of_rows(list(X), y)
    it = GroupedProblem(ClusterTree(), "gaussian", np.arange(2), None)
    for distance in ("coefficients", "predictions"):
        network = similarity_network(InProcess(glm), "model", problem=it, distance=distance, k=4)
        assert network.against(known)["spectral"] == 1.0


# -- given


def test_models_of_any_kind_and_covariates():
    P, known = blobs(24, 3)
    fed = InProcess(Quadratic(np.broadcast_to(np.eye(2), (24, 2, 2)), np.zeros((24, 2))))
    assert similarity_network(fed, models=P, k=3).against(known)["spectral"] == 1.0
    z = points(fed, "covariates", covariates=np.c_[P * [1.0, 1000.0, 0.01], np.ones(24)])
    assert z.shape == (24, 3)
    np.testing.assert_allclose(z.std(axis=0), 1.0)
    assert points(fed, "covariates", covariates=np.arange(24)).shape == (24, 1)


def test_one_client_has_an_empty_network():
    network = similarity_network(InProcess(of_rows([np.ones((3, 1))])), "data")
    assert (network.n, len(network)) == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": "dat"}, "space of a similarity network must be model, data, feature or covariates"),
        ({"spce": "data"}, "no option 'spce'. Did you mean 'space'?"),
        ({"k": 20}, "k must be at most 19 among 20 clients, not 20: take a smaller k"),
        ({"k": 0}, "k must be auto or a whole number from 1"),
        ({"weighted": "yes"}, "weighted of a similarity network must be true or false"),
        ({"space": "data", "features": 7}, "features must be even"),
        ({"space": "data", "width": -1.0}, "width of a similarity network must be a number above 0"),
        ({"space": "data", "distance": "bures"}, "distance is an option of the space model or feature, not of data"),
        ({"space": "feature", "distance": "euclid"}, "distance must be log-euclidean or frobenius or bures or mean"),
        ({"prior": np.nan}, "prior of a similarity network must be a number above 0"),
        ({"space": "covariates"}, "covariates, a table with a row for each client"),
        ({"space": "covariates", "covariates": np.zeros((3, 2))}, "one row for each of 20 clients"),
        ({"space": "covariates", "covariates": np.zeros((20, 2))}, "All clients have the same covariates"),
        ({"space": "covariates", "covariates": ["a"] * 20}, "covariates must be a table of numbers"),
        ({"space": "covariates", "covariates": [np.nan] * 20}, "covariates of rows 0, 1, 2, 3, 4 and 15 more"),
        ({"space": "model", "distance": "predictions", "probes": np.ones((4, 2))}, "Probes need 3 columns"),
        ({"space": "model", "probes": "many"}, "probes must be a table, or a whole number"),
        ({"space": "model", "models": np.full((20, 3), np.inf)}, "models of rows 0, 1, 2, 3, 4 and 15 more"),
    ],
)
def test_what_cannot_be_asked(options, message):
    glm, clusters = table(rows=(1, 9))
    with pytest.raises(CoterieError) as e:
        similarity_network(InProcess(glm, clusters), **{"problem": problem(glm, clusters), **options})
    assert message in str(e.value)


def test_spaces_that_clients_do_not_have():
    quadratics = InProcess(Quadratic(np.broadcast_to(np.eye(2), (4, 2, 2)), np.zeros((4, 2))))
    with pytest.raises(CoterieError, match=names("compared columns models covariates")):
        similarity_network(quadratics, "data")
    with pytest.raises(CoterieError, match="give their models"):
        similarity_network(quadratics)
    constant = InProcess(of_rows([np.ones((3, 2))] * 4))
    with pytest.raises(CoterieError, match="No column varies"):
        similarity_network(constant, "feature")
    nothing = InProcess(of_rows([np.ones((3, 2))] * 4, weights=np.zeros(12)))
    with pytest.raises(CoterieError, match=names("row client weighs anything")):
        similarity_network(nothing, "data")


def test_covariances_are_packed_row_by_row():
    A = np.random.default_rng(0).normal(size=(3, 2, 2))
    S = A @ A.transpose(0, 2, 1)
    g = client_embeddings.covariances(pack(S), np.ones(3), 1e-9)
    np.testing.assert_allclose(np.linalg.eigvalsh(g), np.linalg.eigvalsh(S), rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_rotated_digits_are_grouped_by_their_rotation(seed):
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    images, known = images.reshape(-1, 8, 8) / 16.0, np.arange(40) % 4
    parts = np.array_split(np.random.default_rng(seed).permutation(len(digit)), 40)
    clients = [np.rot90(images[p], r, axes=(1, 2)).reshape(-1, 64) for p, r in zip(parts, known, strict=True)]
    fed = InProcess(of_rows(clients))
    means = similarity_network(fed, "feature", distance="mean", k=4)
    ridges = []
    for X, p in zip(clients, parts, strict=True):
        A = np.c_[X, np.ones(len(X))]
        ridges.append(np.linalg.solve(A.T @ A + np.eye(65), A.T @ (np.eye(10)[digit[p]] - 0.1)).ravel())
    models = similarity_network(fed, "model", models=np.array(ridges), k=4)
    for network in (means, models):
        found = network.against(known)
        assert network.components.max() == 0
        assert found["spectral"] == 1.0
        assert found["inside"] > 0.9
    assert Network.random(40, 4, seed).against(known)["spectral"] < 0.3
