"""What a model of several sites can identify, from sums over clients: the checks that one table gets in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.design import INTERCEPT
from coterie.data.identifiability import Facts, constant_within, far_from_zero, shared_terms
from coterie.engines.remote import Remote
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.federation import Site, work
from coterie.methods.estimates import GroupedProblem
from coterie.methods.replies import require_all_replies
from coterie.numerics.arrays import full
from coterie.relations.clusters import ClusterTree

_SAME = 1e-12
"""Squared sine of the angle between columns below which one is a multiple of the other."""


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
        "several": some.astype(np.int64),
        "varies": varies.astype(np.int64),
        "apart": apart.astype(np.int64),
        "gram": gram,
    }


def problem(
    fed: Remote, terms: Sequence[str], family: str, shared: Sequence[str]
) -> tuple[GroupedProblem, list[str], float]:
    """Which terms are personal, which are shared because no client varies in them, and the mean weight (one exchange).

    A CoterieError names columns that cannot be told apart over all sites, and says that there are fewer rows than
    columns.
    """
    p = len(terms)
    sums = require_all_replies(fed.total(view, p=p))
    _need_independent_columns(terms, float(sums["rows"]), full(np.asarray(sums["gram"])[None])[0])
    intercept = terms.index(INTERCEPT) if INTERCEPT in terms else None
    if intercept is not None:
        gram = full(np.asarray(sums["gram"])[None])[0]
        if trouble := far_from_zero(terms, gram[intercept, intercept], gram[intercept], np.diag(gram)):
            raise CoterieError(trouble)
    unknown = np.full(p, np.nan)  # largest and smallest values are values of rows, which stay where they are
    constant, multiple = np.asarray(sums["varies"]) == 0, full(np.asarray(sums["apart"])[None])[0] == 0
    facts = Facts(int(sums["rows"]), len(fed.clients), 0, np.empty((p, p)), unknown, unknown, constant, multiple)
    must = constant_within(terms, facts)
    asked = shared_terms(terms, shared)
    must &= ~asked
    nothing = len(fed.clients) == 1 or int(sums["several"]) == 0
    names = [] if nothing else [str(term) for term in np.array(terms)[must]]
    tree = ClusterTree(tuple(level.parent for level in fed.participants.levels))
    return (
        GroupedProblem(
            tree, family_named(family), np.flatnonzero(~(asked | must)), intercept, int(sums["several"]) == 0
        ),
        names,
        (float(sums["weight"]) / float(sums["rows"])),
    )


def _need_independent_columns(terms: Sequence[str], rows: float, gram: Any) -> None:
    """Raise where a column is a combination of earlier ones over all rows."""
    if rows < len(terms):
        raise CoterieError(
            f"There are {rows:,.0f} rows for {len(terms):,} columns: give more rows, or leave columns out of the "
            "formula."
        )
    size = np.sqrt(np.diag(gram))
    for k, term in enumerate(terms):
        if not 1e-95 < size[k] < 1e95:
            raise CoterieError(
                f"Column '{term}' is 0 in every row of all sites: leave it out of the formula."
                if size[k] == 0.0
                else f"Column '{term}' cannot be squared safely: use other units."
            )
    R = gram / np.outer(size, size)
    kept: list[int] = []
    for k, term in enumerate(terms):
        c = np.linalg.solve(R[np.ix_(kept, kept)], R[kept, k])
        if 1.0 - R[kept, k] @ c > 1e-10:
            kept.append(k)
            continue
        parts = [f"'{terms[j]}'" for j, v in zip(kept, c, strict=True) if abs(v) > 1e-6]
        raise CoterieError(
            f"Over all sites, column '{term}' is a combination of {' and '.join(parts)}: leave one of them out of the "
            "formula."
        )
