"""Consensus ADMM for objective (1)-(2): clients solve exactly what is theirs, and send d numbers instead of Hessians.

``theta_n = argmin f_n(theta) + rho/2 |theta - (M x + N z_n - y_n)|^2`` at home; the coordinator averages
``theta_n + y_n`` for x and takes its network prox for Z; ``y_n`` adds up what is left (Boyd et al. 2011, section 7).
rho follows the residuals. The certificate is that of ``optimum``; it comes down to about 1e-7.
"""

from __future__ import annotations

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import PerRow, Site, work
from coterie.methods.network.descent import Descent
from coterie.methods.network.exact import Exact
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints
from coterie.numerics.network_prox import Proximal, network_prox

ROUNDS = 3000
LOOK = 10
"""Rounds from one look at the certificate to the next."""
GAP = 1e-13
"""Relative duality gap of the network prox."""
UNEVEN = 10.0
"""Ratio of primal and dual residuals at which rho is changed by 2."""
ADAPT = 400
"""After so many exchanges rho stays as it is: where rounding ends progress, residuals would drive it away."""
AT = "network theta"


@work
def near(site: Site, unit: Floats, target: Floats, rho: float) -> dict[str, Floats]:
    """Each client's minimiser of its loss and ``rho/2 |theta - target|^2``, from its last one."""
    m, d = target.shape
    root = rho**0.5
    start = root * (site.state.get(AT, target) - target)
    everyone, all_columns = np.arange(m, dtype=np.int64), np.arange(d, dtype=np.int64)
    L, which = np.eye(d)[None] / root, np.zeros(m, dtype=np.int64)
    u = site.objective.modes(unit, L, which, all_columns, np.ascontiguousarray(target), everyone, start)[3]
    site.count(m)
    site.state[AT] = target + u / root
    return {"theta": site.state[AT]}


def columns(at: Exact) -> tuple[Ints, Ints]:
    """Which columns are shared and which personal, in the order of x and of z; a CoterieError for other layouts."""
    shared, personal = np.argsort(at.layout.shared), np.argsort(at.layout.personal)
    shared, personal = shared[-at.layout.d1 :][: at.layout.d1], personal[-at.layout.d2 :][: at.layout.d2]
    if sorted([*shared, *personal]) != list(range(at.layout.d)):
        raise CoterieError("ADMM takes columns that are shared or personal, not sums, ties or zeros: use Newton.")
    return shared, personal


def admm(at: Exact, x: Floats, Z: Floats, kkt: float) -> Descent:
    """Go from (x, Z) to where the residual is at most ``kkt``; exchanges of d numbers for each client."""
    shared, personal = columns(at)
    here, exchanges = at.ask(x, Z, curved=False), 1
    rho = 0.25 * here.weight / at.network.n
    y, prox, U = np.zeros((at.network.n, at.layout.d)), None, np.zeros((len(at.network.edges), at.layout.d2))
    off = at.kkt(here, U)
    held = np.zeros(at.network.n) if at.hold is None else at.hold.z
    while off > kkt and exchanges < ROUNDS:
        for _ in range(LOOK):
            before = at.layout.theta(x, Z)
            theta = require_all_replies(at.fed.ask(near, unit=at.unit, target=PerRow(before - y), rho=rho))["theta"]
            exchanges += 1
            V = theta + y
            x = V[:, shared].sum(axis=0) / (at.network.n + (0.0 if at.hold is None else at.hold.x / rho))
            edges, radius, p = at.graph(here.weight)
            mass = 1.0 + held / rho
            middle = V[:, personal] / mass[:, None]
            prox = network_prox(middle, edges, radius / rho, p, gap=GAP, metric=mass, start=prox)
            Z, U = prox.Z, rho * prox.dual
            now = at.layout.theta(x, Z)
            y = V - now
            apart, moved = float(np.linalg.norm(theta - now)), float(np.linalg.norm(now - before))
            change = 2.0 if apart > UNEVEN * moved else 0.5 if moved > UNEVEN * apart else 1.0
            change = change if exchanges < ADAPT else 1.0
            rho, y = rho * change, y / change
            prox = Proximal(prox.Z, prox.dual / change, prox.gap, prox.iterations)
        here, exchanges = at.ask(x, Z, curved=False), exchanges + 1
        off = at.kkt(here, at.feasible(U, here))
    return Descent(here, at.feasible(U, here), off, exchanges)
