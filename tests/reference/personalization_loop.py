"""FedBABU, Per-FedAvg, FedDyn and FedALA word by word, one client after another, in plain NumPy.

A client is a function ``gradient(theta, step)``: of its mean loss, over the rows that step number ``step`` draws.
``chosen`` says who takes part in each round, ``steps`` how many steps each client takes in one.
"""

from __future__ import annotations

import numpy as np

from tests.reference.more_baselines_loop import mean


def fedbabu(gradients, tuning, weights, first, eta, steps, chosen, head, tuned, tunes):
    """``tuned`` steps of ``tunes`` (bool) on the gradients ``tuning`` in the end."""
    body = first[~head]
    for t, S in enumerate(chosen):
        news = []
        for k in S:
            theta = np.array(first)
            theta[~head] = body
            for s in range(steps[k]):
                theta[~head] -= eta * gradients[k](theta, t * steps[k] + s)[~head]
            news.append(theta[~head])
        body = mean(news, [weights[k] for k in S])
    models = []
    for gradient in tuning:
        theta = np.array(first)
        theta[~head] = body
        for s in range(tuned):
            theta[tunes] -= eta * gradient(theta, s)[tunes]
        models.append(theta)
    return body, np.array(models)


def per_fedavg(rows, meta, curvature, tuning, weights, w, beta, steps, chosen, alpha, delta):
    """Four gradients of each client: over D, D', D'' and the rows of the end."""
    for t, S in enumerate(chosen):
        news = []
        for i in S:
            wi = w
            for s in range(t * steps[i], (t + 1) * steps[i]):
                v = meta[i](wi - alpha * rows[i](wi, s), s)
                d = (curvature[i](wi + delta * v, s) - curvature[i](wi - delta * v, s)) / (2 * delta) if delta else 0.0
                wi = wi - beta * (v - alpha * d)
            news.append(wi)
        w = mean(news, [weights[i] for i in S])
    return w, np.array([w - alpha * g(w, 0) for g in tuning])


def feddyn(gradients, weights, w, eta, steps, chosen, alpha):
    g, h = [np.zeros_like(w) for _ in gradients], np.zeros_like(w)
    for t, S in enumerate(chosen):
        news = []
        for k in S:
            theta = w
            for s in range(t * steps[k], (t + 1) * steps[k]):
                theta = theta - eta * (gradients[k](theta, s) - g[k] + alpha * (theta - w))
            g[k] = g[k] - alpha * (theta - w)
            news.append(theta)
        h = h - alpha / sum(weights) * sum(weights[k] * (theta - w) for k, theta in zip(S, news, strict=True))
        w = mean(news, [weights[k] for k in S]) - h / alpha
    return w, h, np.array(g)


def fedala(gradients, learning, weights, w, eta, steps, chosen, part, eta_w, learn, first):
    """``part`` (bool) has weights, which take ``learn[i]`` steps, and ``first[i]`` of them the first time."""
    own, W = {}, [np.ones(part.sum()) for _ in gradients]
    met = [0] * len(gradients)
    for t, S in enumerate(chosen):
        news = []
        for i in S:
            theta = np.array(w)
            if met[i]:
                gap = (w - own[i])[part]
                theta[part] = own[i][part] + gap * W[i]
                many = first[i] if met[i] == 1 else learn[i]
                for s in range(many):
                    g = learning[i](theta, t * many + s)[part]
                    W[i] = np.clip(W[i] - eta_w * g * gap, 0.0, 1.0)
                    theta[part] = own[i][part] + gap * W[i]
            met[i] += 1
            for s in range(t * steps[i], (t + 1) * steps[i]):
                theta = theta - eta * gradients[i](theta, s)
            own[i] = theta
            news.append(theta)
        w = mean(news, [weights[i] for i in S])
    return w, np.array([own.get(i, w) for i in range(len(gradients))]), W
