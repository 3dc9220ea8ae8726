"""What a model of several sites can identify, from sums over clients: the checks that one table gets in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.design import INTERCEPT
from coterie.data.identifiability import Facts, collinear_over, constant_within, far_from_zero, shared_terms
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.federation import Site, nonnegative, require_all_replies, work
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats, full
from coterie.relations.clusters import ClusterTree

_SAME = 1e-12
"""Squared sine of the angle between columns below which one is a multiple of the other."""
_ROUNDING = 1e-12
"""Eigenvalue of X'X of unit columns that is none."""


@nonnegative("rows", "weight")
@work
def view(site: Site, p: int) -> dict[str, Any]:
    """Which columns vary within a client, and which are not multiples of each other there; sums of squares."""
    moments = site.objective.moments()
    gram = site.objective.gram(np.ones(p), 0.0)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        w, x, xx = moments["w"][:, None], moments["x"], moments["xx"]
        varies = w * xx - x**2 > _SAME * w * xx
        square = np.sqrt(xx)
        a, b = np.tril_indices(p)
        size = square[:, a] * square[:, b]
        apart = size**2 - gram**2 > _SAME * size**2
    some = moments["rows"] > 1
    return {
        "rows": moments["rows"],
        "weight": moments["w"],
        "x": moments["x"],
        "several": some.astype(np.int64),
        "varies": varies.astype(np.int64),
        "apart": apart.astype(np.int64),
        "gram": gram,
    }


def problem(
    fed: Remote, terms: Sequence[str], family: str, shared: Sequence[str]
) -> tuple[GroupedProblem, list[str], float, tuple[Floats, Floats]]:
    """Which terms are personal, which are shared because no client varies in them, and the mean weight (one exchange).

    Last the means and standard deviations (p,) of all rows' columns. A CoterieError names columns that cannot be told
    apart over all sites, and says that there are fewer rows than columns.
    """
    p = len(terms)
    sums = require_all_replies(fed.total(view, p=p))
    gram, apart = (full(np.asarray(sums[name])[None])[0] for name in ("gram", "apart"))
    size = np.append(np.sqrt(np.diag(gram)), 1.0)  # of the outcome, too; the largest values stay where they are
    constant, multiple = np.asarray(sums["varies"]) == 0, apart == 0
    rows, weight = int(sums["rows"]), float(sums["weight"])
    facts = Facts(rows, len(fed.clients), 0, gram, -size, size, constant, multiple, weight)
    trouble = collinear_over(terms, facts, lambda scale: [_root(gram / np.outer(scale, scale))])
    intercept = terms.index(INTERCEPT) if INTERCEPT in terms else None
    if trouble is None and intercept is not None:
        trouble = far_from_zero(terms, gram[intercept, intercept], gram[intercept], np.diag(gram))
    if trouble is not None:
        raise CoterieError(trouble)
    asked = shared_terms(terms, shared)
    must = constant_within(terms, facts) & ~asked
    single = int(sums["several"]) == 0
    names = [] if single or len(fed.clients) == 1 else [str(term) for term in np.array(terms)[must]]
    tree = ClusterTree(tuple(level.parent for level in fed.participants.levels))
    personal = np.flatnonzero(~(asked | must))
    mean = np.asarray(sums["x"]) / weight
    sd = np.sqrt(np.maximum(np.diag(gram) / weight - mean**2, 0.0))
    return GroupedProblem(tree, family_named(family), personal, intercept, single), names, weight / rows, (mean, sd)


def _root(gram: Floats) -> Floats:
    """R with R'R = X'X of unit columns; what rounding alone leaves of combinations is 0."""
    values, vectors = np.linalg.eigh(gram)
    return np.asarray(np.sqrt(np.where(values > _ROUNDING, values, 0.0))[:, None] * vectors.T)
