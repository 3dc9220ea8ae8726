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


def fedavg(gradients, weights, w, eta, steps, chosen):
    """``chosen``: who takes part in each round; ``steps`` of each client."""
    for t, S in enumerate(chosen):
        out = [descend(gradients[k], w, eta, steps[k], t * steps[k]) for k in S]
        w = weighted(out, [weights[k] for k in S])
    return w


def ditto(gradients, own, weights, w, eta, steps, chosen, lam, s):
    """``own``: the gradients that personal models see."""
    v = {}
    for t, S in enumerate(chosen):
        for k in S:
            v[k] = descend(own[k], v.get(k, w), eta, s, t * s, w, lam)
        out = [descend(gradients[k], w, eta, steps[k], t * steps[k]) for k in S]
        w = weighted(out, [weights[k] for k in S])
    return w, np.array([v.get(k, w) for k in range(len(gradients))])


def pfedme(gradients, weights, w, eta, chosen, lam, alpha, K, R, beta):
    theta = {}
    for t, S in enumerate(chosen):
        out = []
        for k in S:
            local, theta[k] = w, w
            for r in range(R):
                theta[k] = descend(gradients[k], theta[k], alpha, K, t * R + r, local, lam, same=True)
                local = local - eta * lam * (local - theta[k])
            out.append(local)
        w = (1 - beta) * w + beta * weighted(out, [weights[k] for k in S])
    return w, np.array([theta.get(k, w) for k in range(len(gradients))])


def ifca(gradients, losses, weights, models, eta, tau, chosen):
    """``losses``: the mean loss of each client, a function of theta."""
    models, group = [np.array(m) for m in models], np.full(len(gradients), -1)
    for t, S in enumerate(chosen):
        sent = {}
        for k in S:
            group[k] = min(range(len(models)), key=lambda j: losses[k](models[j]))
            sent[k] = descend(gradients[k], models[group[k]], eta, tau, t * tau)
        for j in range(len(models)):
            mine = [k for k in S if group[k] == j]
            if mine:
                models[j] = weighted([sent[k] for k in mine], [weights[k] for k in mine])
    best = [min(models, key=loss) for loss in losses]
    return np.array(models), np.array(best), group
