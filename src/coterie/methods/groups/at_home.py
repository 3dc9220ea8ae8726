"""What clients of groups do: take their group's model, train it, and send what comes of it."""

from __future__ import annotations

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import Reply, received
from coterie.methods.local_training.personal_layers import Transport
from coterie.numerics.kernels import Floats
from coterie.objectives.mean_loss import sizes


def weights(site: Site, weigh: str) -> Floats:
    """How much clients count (m,): alike or by rows, times their own weight; not at all without rows."""
    rows = sizes(site.objective)
    return np.asarray(site.weights * (rows if weigh == "rows" else rows > 0.0))


def group_models(site: Site, w: Floats, clusters: bool, transport: Transport) -> Floats:
    """Every client's model (m, d), its own layers put in.

    ``w`` has a row for each group where groups are the clusters, otherwise one for each client.
    """
    return received(site, w[site.clusters] if clusters else w, transport)


@work
def mine(site: Site, w: Floats, clusters: bool, transport: Transport) -> Reply:
    """Every client's model."""
    return {"theta": group_models(site, w, clusters, transport)}
