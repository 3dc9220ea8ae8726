"""FedAMP, pFedGraph, FedFomo, APPLE and FedSoft word by word, one client after another, in plain NumPy.

A client is a function ``gradient(theta, step)``: of its mean loss, over the rows that step number ``step`` draws.
``chosen`` says who takes part in each round, ``steps`` how many steps each client takes in one.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize


def descend(gradient, theta, eta, first, steps, beside=lambda theta: 0.0):
    theta = np.array(theta)
    for s in range(first, first + steps):
        theta = theta - eta * (gradient(theta, s) + beside(theta))
    return theta


def attention(W, i, alpha, sigma):
    """(6) of FedAMP."""
    xi = [0.0 if j == i else alpha * np.exp(-np.sum((W[i] - w) ** 2) / sigma) / sigma for j, w in enumerate(W)]
    xi = np.array(xi) / max(sum(xi), 1.0)
    xi[i] = 1.0 - sum(xi)
    return xi


def cosine(W, i, own, sigma):
    """(8) of HeurFedAMP."""
    e = [0.0 if j == i else np.exp(sigma * cos(W[i], w)) for j, w in enumerate(W)]
    return np.array([own if j == i else (1 - own) * e[j] / sum(e) for j in range(len(W))])


def cos(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def graph(D, i, p, alpha):
    """A row of pFedGraph's graph, by a solver for any problem."""

    def loss(w):
        return sum(w[j] * -cos(D[i], D[j]) for j in range(len(D))) + alpha * np.sum((w - p) ** 2)

    one = {"type": "eq", "fun": lambda w: w.sum() - 1.0}
    found = minimize(loss, p, bounds=[(0, 1)] * len(D), constraints=one, options={"ftol": 1e-15, "maxiter": 1000})
    return found.x


def weighed(gradients, w, eta, steps, chosen, weigh, beside):
    """FedAMP and pFedGraph: ``weigh(W, i, known)`` says what i hears of those that are known, ``beside`` what pulls."""
    W, known = [np.array(w) for _ in gradients], []
    for t, S in enumerate(chosen):
        sent = {}
        for i in S:
            u = W[i]
            if i in known and len(known) > 1:
                there = np.array([W[j] for j in known])
                u = weigh(there, known.index(i), known) @ there
            sent[i] = descend(gradients[i], u, eta, t * steps[i], steps[i], lambda theta, u=u: beside(theta, u))
        for i, theta in sent.items():
            W[i] = theta
        known = sorted({*known, *S})
    return np.array(W)


def fedfomo(gradients, losses, w, eta, steps, chosen, offered):
    """``losses`` on rows kept back; ``offered(t, i, P)`` says whose models a client is sent."""
    n = len(gradients)
    W, P = [np.array(w) for _ in range(n)], np.eye(n)
    for t, S in enumerate(chosen):
        sent, gains = {}, {}
        for i in S:
            others = offered(t, i, P)
            gain = []
            for j in others:
                far = np.linalg.norm(W[j] - W[i])
                gain.append(max((losses[i](W[i]) - losses[i](W[j])) / far, 0.0) if far > 0 else 0.0)
            theta = W[i]
            if sum(gain):
                theta = theta + sum(g / sum(gain) * (W[j] - W[i]) for g, j in zip(gain, others, strict=True))
            sent[i] = descend(gradients[i], theta, eta, t * steps[i], steps[i])
            gains[i] = zip(others, gain, strict=True)
        for i, theta in sent.items():
            W[i] = theta
            for j, g in gains[i]:
                P[i, j] += g
    return np.array(W), P


def apple(gradients, w, eta, steps, chosen, p0, eta_p, mu, L):
    n = len(gradients)
    W, P = [np.array(w) for _ in range(n)], np.tile(p0, (n, 1))
    for t, S in enumerate(chosen):
        lam, sent = (np.cos(np.pi * t / L) + 1) / 2 if t < L else 0.0, {}
        for i in S:
            cores, p = list(W), P[i].copy()
            for s in range(t * steps[i], (t + 1) * steps[i]):
                g = gradients[i](sum(c * core for c, core in zip(p, cores, strict=True)), s)
                turn = np.array([g @ core for core in cores]) + lam * mu * (p - p0)
                cores[i] = cores[i] - eta * p[i] * g
                p = p - eta_p * turn
            sent[i] = cores[i], p
        for i, (core, p) in sent.items():
            W[i], P[i] = core, p
    return np.array(W), P, P @ np.array(W)


def fedsoft(gradients, rows, counts, weights, centres, eta, tau, chosen, lam, every, least):
    """``rows[i](theta)`` has the loss of every row of client i, and ``counts[i]`` their weights."""
    centres, u, own, k = np.array(centres), {}, {}, len(centres)
    for t, S in enumerate(chosen):
        if t % every == 0:
            for i in S:
                best = np.argmin([rows[i](c) for c in centres], axis=0)
                share = np.array([max(np.average(best == s, weights=counts[i]), least) for s in range(k)])
                u[i] = share / share.sum()
        for i in S:
            mine = u.get(i, np.full(k, 1 / k))

            def pull(theta, mine=mine, now=centres):
                return lam * sum(mine[s] * (theta - now[s]) for s in range(k))

            own[i] = descend(gradients[i], own.get(i, mine @ centres), eta, t * tau, tau, pull)
        shares = np.array([weights[i] * u.get(i, np.full(k, 1 / k)) for i in S])
        centres = shares.T @ np.array([own[i] for i in S]) / shares.sum(axis=0)[:, None]
    none = np.full(k, 1 / k)
    return centres, np.array([own.get(i, u.get(i, none) @ centres) for i in range(len(gradients))]), u
