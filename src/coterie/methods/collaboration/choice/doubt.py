"""Whether a main client's own rows contradict the model that it would have with its collaborators.

Weights are chosen on gradients at one point, as if losses were quadratic. Counts whose means differ by orders of
magnitude are not, and what seems noise is others' bias. A likelihood ratio sees that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Bools, Floats
from coterie.numerics.overflow import encode_loss

SURE = 6.0
"""By how many standard deviations of a chi-squared variable a likelihood ratio must be above its mean."""


@work
def misfit(site: Site, theta: Floats) -> dict[str, Any]:
    """Negative log-likelihoods of a client's rows, less a constant."""
    return {"loss": encode_loss(site.objective.losses(np.ones(theta.shape[1]), theta))}


def contradicted(fed: Federation, metric: Metric, who: Collaborators, alpha: Floats) -> Bools:
    """Where twice the own log-likelihood falls by more than ``d + SURE sqrt(2 d)`` against being alone, (M,).

    For outcomes whose rows have a likelihood without a scale, binomial and Poisson.
    """
    d, M = len(metric.at), len(who.main)
    alone = optimum(fed, who, np.zeros(M), metric).theta
    together = optimum(fed, who, alpha, metric).theta
    both = np.concatenate([alone, together])
    loss = require_all_replies(fed.ask(misfit, to=np.tile(who.main, 2), theta=PerRow(both)))["loss"]
    return np.asarray(2.0 * (loss[M:] - loss[:M]) > d + SURE * np.sqrt(2.0 * d))
