"""Linear speedup in personalized collaborative learning (2022), Algorithm 2: weighted gradient averaging (WGA).

It is SGD on ``(1 - alpha) f_0 + alpha sum_k tau_k f_k``; ``collaboration.optimum`` goes there at once,
``collaboration.theory.wga_theory`` chooses alpha, tau and eta. With alpha = 0 every main client works alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.methods.aggregation.received import State
from coterie.methods.collaboration.collaborative_sgd import CollaborativeSGD
from coterie.methods.collaboration.exchange import Heard
from coterie.numerics.kernels import Floats


@dataclass(frozen=True, kw_only=True)
class WeightedAveraging(CollaborativeSGD):
    """Algorithm 2.

    Attributes
    ----------
    m : float, default 0
        How gradient differences grow with the main client's gradient (Assumption A4), where it is known. It changes
        nothing but ``notes``.
    """

    m: float = 0.0

    @property
    def notes(self) -> list[str]:
        """Also where alpha is too large for a known m."""
        if not self.m > 0.0 or callable(self.alpha) or np.all(np.asarray(self.alpha) < self.m**-0.5):
            return super().notes
        return [
            *super().notes,
            f"alpha = {np.max(self.alpha):g} is not below 1 / sqrt(m) = {self.m**-0.5:g}, beyond which Theorem 4.1 "
            "promises nothing.",
        ]

    def form(self, heard: Heard, alpha: Floats, state: State) -> tuple[Floats, State]:
        """``g(x_t) = (1 - alpha_t) g_0(x_t) + alpha_t sum_k tau_k g_k(x_t)``."""
        alpha = alpha[:, None]
        return (1.0 - alpha) * heard.own + alpha * heard.average, {}
