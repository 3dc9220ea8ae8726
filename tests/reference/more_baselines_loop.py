"""FedProx, SCAFFOLD, APFL, FedPer (and FedBN) and FedRep word by word, one client after another, in plain NumPy.

A client is a function ``gradient(theta, step)``: of its mean loss, over the rows that step number ``step`` draws.
``chosen`` says who takes part in each round, ``steps`` how many steps each client takes in one.
"""

from __future__ import annotations

import numpy as np


def mean(models, weights):
    return np.sum([n * np.asarray(x) for n, x in zip(weights, models, strict=True)], axis=0) / np.sum(weights)


def fedprox(gradients, weights, w, eta, steps, chosen, mu):
    """Every chosen client nearly minimises ``F_k(v) + mu/2 |v - w|^2``; the server takes their mean."""
    for t, S in enumerate(chosen):
        news = []
        for k in S:
            v = w
            for s in range(t * steps[k], (t + 1) * steps[k]):
                v = v - eta * (gradients[k](v, s) + mu * (v - w))
            news.append(v)
        w = mean(news, [weights[k] for k in S])
    return w


def fedopt(gradients, weights, x, eta, steps, chosen, rule, eta_g, beta1=0.9, beta2=0.99, tau=1e-3):
    """Algorithm 2 of Reddi et al., number by number; ``rule`` avgm is FedAvgM with momentum beta1."""
    x, m, v = [float(a) for a in x], [0.0] * len(x), [tau**2] * len(x)
    for t, S in enumerate(chosen):
        news = []
        for k in S:
            y = np.array(x)
            for s in range(t * steps[k], (t + 1) * steps[k]):
                y = y - eta * gradients[k](y, s)
            news.append(y)
        for j, new in enumerate(mean(news, [weights[k] for k in S])):
            delta = new - x[j]
            if rule == "avgm":
                m[j] = beta1 * m[j] + delta
                x[j] += eta_g * m[j]
                continue
            m[j] = beta1 * m[j] + (1 - beta1) * delta
            if rule == "adagrad":
                v[j] += delta**2
            elif rule == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * delta**2
            elif v[j] > delta**2:
                v[j] -= (1 - beta2) * delta**2
            else:
                v[j] += (1 - beta2) * delta**2
            x[j] += eta_g * m[j] / (v[j] ** 0.5 + tau)
    return np.array(x)


def scaffold(gradients, weights, x, eta, steps, chosen, eta_g=1.0, full=None):
    """Option II, or option I where ``full`` has the gradients over all rows."""
    c = np.zeros_like(x)
    own = [np.zeros_like(x) for _ in gradients]
    for r, S in enumerate(chosen):
        dy, dc = np.zeros_like(x), np.zeros_like(x)
        for i in S:
            y = x
            for s in range(steps[i]):
                y = y - eta * (gradients[i](y, r * steps[i] + s) - own[i] + c)
            plus = full[i](x, 0) if full else own[i] - c + (x - y) / (steps[i] * eta)
            dy, dc = dy + weights[i] * (y - x), dc + weights[i] * (plus - own[i])
            own[i] = plus
        x = x + eta_g * dy / sum(weights[i] for i in S)
        c = c + dc / sum(weights)
    return x, c, np.array(own)


def l2gd(gradients, weights, w, eta, chosen, counts, lam, alpha, clusters, tau):
    """Own models, one after another: a pull to the means of those that took part last, then so many local steps."""
    own, k = {}, max(clusters) + 1
    size = [clusters.tolist().count(j) for j in range(k)]
    means, total, done = [w] * k, [float(n) for n in size], 0
    for S, steps in zip(chosen, counts, strict=True):
        every = mean(means, total)
        towards = [(1 - alpha) * m + alpha * every for m in means]
        for i in S:
            theta = own.get(i, towards[clusters[i]])
            theta = theta - eta * tau * lam * (theta - towards[clusters[i]])
            for s in range(done, done + steps):
                theta = theta - eta * gradients[i](theta, s)
            own[i] = theta
        for j in range(k):
            if heard := [i for i in S if clusters[i] == j]:
                means[j] = mean([own[i] for i in heard], [weights[i] for i in heard])
                total[j] = sum(weights[i] for i in heard) / len(heard) * size[j]
        done += steps
    return means, own


def apfl(gradients, weights, w, eta, steps, chosen, alpha, adaptive=False):
    """Every local step moves w_i, and v_i along the gradient at the mixture."""
    m = len(gradients)
    v, a, mixed = [w] * m, [alpha] * m, {}
    for t, S in enumerate(chosen):
        news = []
        for i in S:
            wi, vi, ai = w, v[i] if i in mixed else w, a[i]
            for s in range(steps[i]):
                number = t * steps[i] + s
                at_mixture = gradients[i](ai * vi + (1 - ai) * wi, number)
                new_a = ai - eta * np.dot(vi - wi, at_mixture) if adaptive and s == 0 else ai
                vi = vi - eta * ai * at_mixture
                wi = wi - eta * gradients[i](wi, number)
                ai = min(max(new_a, 0.0), 1.0)
            v[i], a[i], mixed[i] = vi, ai, ai * vi + (1 - ai) * wi
            news.append(wi)
        w = mean(news, [weights[i] for i in S])
    return w, v, a, mixed


def fedper(gradients, weights, first, eta, steps, chosen, mine):
    """FedAvg of the coordinates that are not ``mine`` (bool); these every client keeps, from ``first`` on."""
    shared, own = first[~mine], {}
    for t, S in enumerate(chosen):
        news = []
        for k in S:
            theta = np.empty_like(first)
            theta[~mine], theta[mine] = shared, own.get(k, first[mine])
            for s in range(steps[k]):
                theta = theta - eta * gradients[k](theta, t * steps[k] + s)
            own[k] = theta[mine]
            news.append(theta[~mine])
        shared = mean(news, [weights[k] for k in S])
    return shared, assembled(len(gradients), shared, own, first, mine)


def fedrep(heads, bodies, weights, first, eta, head_steps, steps, chosen, mine):
    """First the head goes, over rows of its own, then the body; only the body is averaged."""
    shared, own = first[~mine], {}
    for t, S in enumerate(chosen):
        news = []
        for i in S:
            h, phi = own.get(i, first[mine]), shared
            for s in range(head_steps[i]):
                h = h - eta * heads[i](joined(phi, h, mine), t * head_steps[i] + s)[mine]
            for s in range(steps[i]):
                phi = phi - eta * bodies[i](joined(phi, h, mine), t * steps[i] + s)[~mine]
            own[i] = h
            news.append(phi)
        shared = mean(news, [weights[i] for i in S])
    return shared, assembled(len(heads), shared, own, first, mine)


def joined(shared, own, mine):
    theta = np.empty(len(mine))
    theta[~mine], theta[mine] = shared, own
    return theta


def assembled(m, shared, own, first, mine):
    return np.array([joined(shared, own.get(k, first[mine]), mine) for k in range(m)])
