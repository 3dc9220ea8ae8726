"""What a method for tables is given, beside rows, and returns: values and covariances of all nodes, in table units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.families import Family, family_named
from coterie.federation import Federation, PerCluster, require_all_replies
from coterie.methods.tree.client_work import finish
from coterie.methods.tree.penalised_tree import Basis, Setup, Solution, per_cluster
from coterie.methods.tree.sweep_up_and_down import sweep_down
from coterie.methods.tree.variance_posterior import Uncertainty, with_added
from coterie.methods.tree.variance_uncertainty import Explored
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.relations.clusters import ClusterTree


@dataclass(frozen=True)
class GroupedProblem:
    """What is to be fitted, beside the rows that the sites hold."""

    tree: ClusterTree
    family: Family
    personal: Ints  # (q,) columns that may differ between clients
    intercept: int | None  # the intercept's column
    single_rows: bool = False  # every client has one row
    # What the federation's columns are of the table's, where they are not these; see :func:`in_table`
    basis: Basis | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", family_named(self.family))

    def in_basis(self, clients: Clients) -> Clients:
        """Clients of the table's columns, in those that the problem is of."""
        return clients if self.basis is None else replace(clients, X=clients.X @ self.basis.matrix)

    @property
    def straying(self) -> Ints:
        """Personal columns in which how far clients lie from their cluster can be told from the noise of rows.

        With one row for each client only families whose overdispersion shows tell, and of their intercepts.
        """
        if not self.single_rows:
            return self.personal
        return np.asarray(self.personal[(self.personal == self.intercept) & self.family.overdispersion_shows])

    @property
    def learnable(self) -> bool:
        """Whether there is a variance to be learned: of clients, or of clusters."""
        return len(self.straying) > 0 or not self.single_rows or self.tree.sizes[0] > 1


@dataclass(frozen=True)
class Estimates:
    """Coefficients in the units of the table: a value and a covariance at every node of the tree.

    There are m clients, k_l clusters of each level and p terms; P = p (p + 1) / 2, of packed lower triangles. Those of
    clients have no rows where a federation leaves clients' own numbers at their sites.
    """

    root: Floats  # (p,): global coefficients
    root_cov: Floats  # (p, p)
    nodes: tuple[Floats, ...]  # (k_l, p): the clusters' coefficients, fine to coarse
    node_cov: tuple[Floats, ...]  # (k_l, P): their covariances
    client: Floats  # (m, p): the clients' coefficients
    client_cov: Floats  # (m, P): their posterior covariances; NaN for methods without
    D_client: Floats
    """(1 or k, p, p): covariance of clients around their cluster, one for all, or one for each finest cluster. Zero
    columns are not personal. All zero for methods without one."""
    D_levels: tuple[Floats, ...]  # (p, p): covariance of each level's clusters around their parents
    sigma2: float = 1.0  # residual variance, or dispersion (1 for families without one)
    client_sigma2: Floats | None = None  # (m,): that of every client, where each has its own; sigma2 is then their mean
    log_likelihood: float | None = None
    info: dict[str, Any] = field(default_factory=dict)  # what was chosen and how the run went; plain JSON values
    uncertainty: Uncertainty | None = None  # of the variances, which covariances then have in them
    family: str = ""  # with degrees of freedom that were found; empty where it is the problem's
    # Gives estimates whose covariances have the uncertainty of the variances, where these have not and it is wanted
    later: Callable[[], Estimates] | None = field(default=None, metadata={"saved": False})


def collect(
    fed: Federation,
    setup: Setup,
    s: Solution,
    L: list[Floats],
    sigma2: float,
    C: Floats | None = None,
    needed: bool = False,
    unsure: Explored | None = None,
    **extra: Any,
) -> Estimates:
    """Let every client finish its own parameters, and bring all that may be shown into the units of the table.

    C (p, p) is the root's covariance, relative to sigma2; by default the inverse of its curvature. ``needed``: the
    method cannot do without every client's own numbers, even where the federation leaves them at the sites. ``unsure``:
    what is known of the variances' uncertainty, and of the root's covariance. ``extra``: what ``solve`` was given.
    """
    root = s.positions.at[-1][0]
    if C is None:
        C = s.inverse if unsure is None else unsure.C
    placed = sweep_down(setup.tree, s.swept, L[1:], setup.z, root, C, setup.prior(client=False))
    message: dict[str, Any] = {"w": PerCluster(placed.at[0]), "C": PerCluster(placed.cov[0])}
    units = np.outer(setup.unit, setup.unit)
    scale = pack(units) * sigma2
    if unsure is not None:
        scale = pack(units) * unsure.factor
        extra |= {"sigma2": sigma2, "metric": unsure.metric}
    show = needed or getattr(fed, "reveals", True)
    if not show:
        extra |= {"unit": setup.unit, "origin": setup.raw(np.zeros(setup.p))}
    call = fed.ask if show else fed.total  # of clients that show nothing, none is spoken to alone
    message |= {"z": setup.z, "L": per_cluster(L[0]), "scale": scale, "show": show}
    replies = require_all_replies(call(finish, **message, **extra))
    own: Any = replies if show else {"theta": np.empty((0, setup.p)), "cov": np.empty((0, len(scale)))}
    spread, cov, root_cov, uncertainty = [_spread(setup, Ll, sigma2) for Ll in L], placed.cov, C * units * sigma2, None
    if unsure is not None:
        cov = [with_added(S * sigma2, added) for S, added in zip(cov, unsure.added, strict=True)]
        root_cov = full(cov[-1][0]) * units * unsure.factor
        uncertainty = unsure.in_units(setup, spread, root_cov, own.get("doubt", np.empty(0)))
    return Estimates(
        root=setup.raw(root),
        root_cov=root_cov,
        nodes=tuple(setup.raw(a) for a in placed.at[:-1]),
        node_cov=tuple(c * scale for c in cov[:-1]),
        client=setup.raw(own["theta"]),
        client_cov=own["cov"],
        D_client=spread[0],
        D_levels=tuple(d[0] for d in spread[1:]),
        sigma2=sigma2,
        uncertainty=uncertainty,
    )


def in_table(fitted: Estimates, B: Floats) -> Estimates:
    """What was fitted to columns ``X @ B``, as coefficients of X."""

    def packed(S: Floats) -> Floats:
        return pack(B @ full(S) @ B.T)

    later = fitted.later
    return replace(
        fitted,
        root=B @ fitted.root,
        root_cov=B @ fitted.root_cov @ B.T,
        nodes=tuple(n @ B.T for n in fitted.nodes),
        node_cov=tuple(packed(S) for S in fitted.node_cov),
        client=fitted.client @ B.T,
        client_cov=packed(fitted.client_cov),
        D_client=B @ fitted.D_client @ B.T,
        D_levels=tuple(B @ D @ B.T for D in fitted.D_levels),
        uncertainty=None if fitted.uncertainty is None else fitted.uncertainty.turned(B),
        later=None if later is None else lambda: in_table(later(), B),
    )


def in_unit(fitted: Estimates, unit: float) -> Estimates:
    """What was fitted to outcomes that were divided by a unit, as estimates of these outcomes."""
    turned, likelihood = in_table(fitted, unit * np.eye(len(fitted.root))), fitted.log_likelihood
    each, info = fitted.client_sigma2, fitted.info
    if likelihood is not None and "rows" in info:
        free = info["rows"] - len(fitted.root) * bool(info.get("reml"))
        likelihood -= free * float(np.log(unit))
    if "sigma2" in info.get("rounds", ()):  # of gradients
        info = info | {"rounds": info["rounds"] | {"sigma2": info["rounds"]["sigma2"] * unit**2}}
    each = None if each is None else each * unit**2
    square = fitted.sigma2 * unit**2
    return replace(turned, sigma2=square, client_sigma2=each, log_likelihood=likelihood, info=info)


def _spread(setup: Setup, L: Floats, sigma2: float) -> Floats:
    """Covariances (g, p, p) of deviations L u, in the units of the table; zero where L is infinite."""
    L = np.where(np.isfinite(L), L, 0.0)
    D = np.zeros((len(L), setup.p, setup.p))
    D[:, setup.z[:, None], setup.z] = np.einsum("gij,gkj->gik", L, L) * sigma2
    return D * np.outer(setup.unit, setup.unit)


def summarise(values: Floats) -> Any:
    """A number for each cluster or client, as what can be read: one, a few, or their range."""
    different = np.unique(values)
    if len(different) == 1:
        return float(different[0])
    return values.tolist() if len(values) <= 20 else {"from": float(different[0]), "to": float(different[-1])}
