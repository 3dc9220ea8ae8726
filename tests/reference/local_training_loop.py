"""FedAvg, Ditto, pFedMe and IFCA word by word, one client after another, in plain NumPy.

A client is a function ``gradient(theta, step)``: of its mean loss, over the rows that step number ``step`` draws.
"""

from __future__ import annotations

import numpy as np


def descend(gradient, theta, eta, steps, first, towards=None, lam=0.0, same=False):
    """``steps`` gradient steps, numbered from ``first``, with a pull towards a model."""
    theta = np.array(theta)
    for s in range(steps):
        g = gradient(theta, first if same else first + s)
        theta = theta - eta * (g + (lam * (theta - towards) if lam else 0.0))
    return theta


def weighted(models, weights):
    return sum(n * w for n, w in zip(weights, models, strict=True)) / sum(weights)


class Own:
    """Parts of models that stay with clients: where ``shared`` (d,) is false; ``first`` (d,) has the first ones."""

    def __init__(self, shared=None, first=None):
        self.shared, self.first, self.parts = shared, first, {}

    def joined(self, k, w):
        """What client k makes of a model w (d,)."""
        return w if self.shared is None else np.where(self.shared, w, self.parts.get(k, self.first))

    def kept(self, k, theta):
        """What client k sends."""
        self.parts[k] = theta
        return theta if self.shared is None else np.where(self.shared, theta, 0.0)


def fedavg(gradients, weights, w, eta, steps, chosen, own=None):
    """``chosen``: who takes part in each round; ``steps`` of each client; w, and what clients would start from next."""
    own = own or Own()
    for t, S in enumerate(chosen):
        out = [own.kept(k, descend(gradients[k], own.joined(k, w), eta, steps[k], t * steps[k])) for k in S]
        w = weighted(out, [weights[k] for k in S])
    return w, np.array([own.joined(k, w) for k in range(len(gradients))])


def ditto(gradients, personal, weights, w, eta, steps, chosen, lam, s, own=None):
    """``personal``: the gradients that personal models see; ``s``: their steps, for each client or for all."""
    s = np.broadcast_to(s, len(gradients))
    v, own = {}, own or Own()
    for t, S in enumerate(chosen):
        for k in S:
            start = own.joined(k, w)
            v[k] = descend(personal[k], v.get(k, start), eta, s[k], t * s[k], start, lam)
        out = [own.kept(k, descend(gradients[k], own.joined(k, w), eta, steps[k], t * steps[k])) for k in S]
        w = weighted(out, [weights[k] for k in S])
    return w, np.array([v.get(k, own.joined(k, w)) for k in range(len(gradients))])


def pfedme(gradients, weights, w, eta, chosen, lam, alpha, K, R, beta, own=None):
    theta, own = {}, own or Own()
    for t, S in enumerate(chosen):
        out = []
        for k in S:
            local = theta[k] = own.joined(k, w)
            for r in range(R):
                theta[k] = descend(gradients[k], theta[k], alpha, K, t * R + r, local, lam, same=True)
                local = local - eta * lam * (local - theta[k])
            out.append(own.kept(k, local))
        w = (1 - beta) * w + beta * weighted(out, [weights[k] for k in S])
    return w, np.array([theta.get(k, own.joined(k, w)) for k in range(len(gradients))])


def ifca(gradients, losses, weights, models, eta, tau, chosen, own=None):
    """``losses``: the mean loss of each client, a function of theta."""
    models, group, own = [np.array(m) for m in models], np.full(len(gradients), -1), own or Own()
    for t, S in enumerate(chosen):
        sent = {}
        for k in S:
            starts = [own.joined(k, model) for model in models]
            group[k] = min(range(len(models)), key=lambda j: losses[k](starts[j]))
            sent[k] = own.kept(k, descend(gradients[k], starts[group[k]], eta, tau, t * tau))
        for j in range(len(models)):
            mine = [k for k in S if group[k] == j]
            if mine:
                models[j] = weighted([sent[k] for k in mine], [weights[k] for k in mine])
    best = [min((own.joined(k, m) for m in models), key=loss) for k, loss in enumerate(losses)]
    return np.array(models), np.array(best), group
