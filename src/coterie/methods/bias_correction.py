"""Linear speedup in personalized collaborative learning (2022), Algorithm 3: bias correction (BC).

The collaborators' average is corrected by what its bias was in past steps, an exponential average c of observed biases,
or by an oracle of the bias (section 5.1). ``collaboration.theory.bc_theory`` chooses alpha, tau, beta and eta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.aggregation.received import State
from coterie.methods.collaboration.collaborative_sgd import CollaborativeSGD, Schedule, at_step, within
from coterie.methods.collaboration.exchange import Heard
from coterie.numerics.kernels import Floats


def need_first(first: Any) -> None:
    """Raise a CoterieError for what c_0 cannot be."""
    samples = isinstance(first, (int, np.integer)) and not isinstance(first, bool) and first > 0
    if not samples and first not in ("zero", "sample"):
        raise CoterieError(f"c_0 is zero, sample, or a number of samples, not {first!r}.")


def beyond(beta: float) -> str:
    """What to know of a beta above 1."""
    return (
        f"beta = {beta:g} is above 1, beyond which Theorems 5.2 and C.4 promise nothing: the correction goes beyond "
        f"the newest bias{', and grows for ever from 2 on' if beta >= 2.0 else ''}."
    )


@dataclass(frozen=True, kw_only=True)
class BiasCorrection(CollaborativeSGD):
    """Algorithm 3.

    Attributes
    ----------
    beta : number, (M,) or callable
        Weight of the newest observed bias, above 0; with 1 c is the last one only (appendix A.2), and above 1, where no
        theorem holds, it goes beyond it. From 2 on c grows for ever.
    first : {"zero", "sample"} or int, default "sample"
        c_0: zero, the first observed bias (so that the first step is one's own), or the mean of that many samples,
        drawn for the purpose (C.4).
    keep : number or (M,), default 0
        Share of the bias that is kept, because some bias may make up for a lack of data (section 7): 0 corrects all
        of it, 1 is weighted averaging. Where BC with alpha ends, it ends where WGA with ``keep * alpha`` does.
    oracle : callable, optional
        ``oracle(t, x)``: unbiased estimates (M, d) of ``sum_k tau_k grad f_k - grad f_0`` at x (M, d), used instead of
        c_t; all in the metric's units. With local steps it knows nothing of their drift, which c_t does.
    """

    beta: Schedule = 0.1
    first: Any = "sample"
    keep: Any = 0.0
    oracle: Callable[[int, Floats], Floats] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.beta):
            within("beta", self.beta, 0.0, np.inf, open_below=True)
        within("keep", self.keep, 0.0, 1.0)
        need_first(self.first)

    @property
    def notes(self) -> list[str]:
        """Also where beta is too large for the theorems."""
        if callable(self.beta) or np.all(np.asarray(self.beta) <= 1.0):
            return super().notes
        return [*super().notes, beyond(float(np.max(self.beta)))]

    def init(self, fed: Federation, x: Floats | None = None) -> State:
        """The state before the first step, with c_0."""
        state = super().init(fed, x)
        state["c"] = np.zeros_like(state["x"])
        state["observed"] = np.full(len(state["x"]), self.first == "zero")
        if self.first not in ("zero", "sample"):
            heard = self.exchange.sampled(fed, state, int(self.first))
            known = heard.spoke & heard.helped
            c = np.where(known[:, None], heard.average - heard.own, 0.0)
            state = heard.state | {"c": c, "observed": known}
        return state

    def correction(self, state: State) -> Floats:
        """What is taken off the collaborators' average: c_t or the oracle's, less what is kept of the bias."""
        kept = at_step(self.keep, state["t"], len(state["x"]))
        bias = state["c"] if self.oracle is None else np.asarray(self.oracle(state["t"], state["x"]))
        if bias.shape != state["x"].shape:
            raise CoterieError(f"The oracle must give biases of shape {state['x'].shape}, not {bias.shape}.")
        return np.asarray((1.0 - kept[:, None]) * bias)

    def form(self, heard: Heard, alpha: Floats, state: State) -> tuple[Floats, State]:
        """``g = (1 - alpha) g_0 + alpha (g_avg - c)``, ``b = g_avg - g_0``, ``c <- (1 - beta) c + beta b``."""
        alpha, beta = alpha[:, None], at_step(self.beta, state["t"], len(alpha))[:, None]
        within("beta", beta, 0.0, np.inf, open_below=True)
        b = heard.average - heard.own
        c = np.where(state["observed"][:, None], state["c"], b)
        g = (1.0 - alpha) * heard.own + alpha * (heard.average - self.correction(state | {"c": c}))
        helped = heard.helped
        c = np.where(helped[:, None], (1.0 - beta) * c + beta * b, state["c"])
        return g, {"c": c, "observed": state["observed"] | helped}
