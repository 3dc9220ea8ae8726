"""Algorithms 2 and 3 word by word, for main clients one after another, with any rules for what is heard."""

from __future__ import annotations

import numpy as np

from coterie.methods.aggregation.rules import Aggregator, Received


def run(who, gradients, x, steps, eta, alpha, beta=None, rules=None, state=None):
    """x (M, d) and the rules' state after all steps; ``beta`` makes it Algorithm 3, with c_0 = b_0.

    ``gradients(t, x)`` gives own gradients (M, d) and those of the pairs (P, d), each at its main client's x.
    """
    rules, M, d = rules or Aggregator(), *x.shape
    state = {"x": x, "c": None, "t": 0} | rules.init(M, len(who.pair_main), d) if state is None else state
    x, c, P = np.array(state["x"]), state["c"], len(who.pair_client)
    for t in range(state["t"], state["t"] + steps):
        own, g = gradients(t, x)
        known, age = np.isfinite(g).all(axis=1), np.zeros(P, dtype=np.int64)
        g = np.where(known[:, None], g, 0.0)
        weights = np.where(known, who.tau, 0.0)
        average, helped, state = rules(Received(who.pair_main, g, known, age, own, t), weights, state)
        bias = average - own
        c = bias.copy() if c is None else c
        for i in range(M):
            if not helped[i]:
                x[i] = x[i] - eta * own[i]
            elif beta is None:
                x[i] = x[i] - eta * ((1 - alpha) * own[i] + alpha * average[i])
            else:
                x[i] = x[i] - eta * ((1 - alpha) * own[i] + alpha * (average[i] - c[i]))
                c[i] = (1 - beta) * c[i] + beta * bias[i]
    return x, state | {"x": x, "c": c, "t": state["t"] + steps}


class Noisy:
    """Quadratics with noisy gradients: client 0 is the main one, clients 1, ..., N its collaborators.

    ``senders`` maps what a collaborator sends: ``f(gradient, generator, x)`` by number.
    """

    def __init__(self, A, x_star, sigma, seed, senders=None):
        self.A, self.x_star, self.sigma = np.asarray(A), np.asarray(x_star), sigma
        self.rng, self.senders = np.random.default_rng(seed), senders or {}

    def __call__(self, t, x):
        g = np.einsum("kij,kj->ki", self.A, x[0] - self.x_star)
        g = g + self.sigma * self.rng.normal(size=g.shape)
        for k, send in self.senders.items():
            g[k] = send(g[k], self.rng, x[0])
        return g[:1], g[1:]

    def loss(self, x):
        """f_0(x) - f_0(x_0*)."""
        off = x[0] - self.x_star[0]
        return 0.5 * off @ self.A[0] @ off
