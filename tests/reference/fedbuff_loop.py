"""FedBuff event by event, one client after another, in plain NumPy.

A client is a function ``gradient(theta, step)``: of its mean loss, over the rows that step number ``step`` draws.
``order(t)`` lists clients as they are drawn before step t, ``takes(k, t)`` says how long client k then trains, and
``there(k, hour)`` whether it can be asked in an hour.
"""

from __future__ import annotations

import numpy as np


def fedbuff(gradients, weights, w, eta, eta_g, steps, rounds, places, K, order, takes, there):
    """The model after so many steps of the server, and how old the changes were."""
    training, hour, stale = [], 0.0, []  # [end, version, client, model it began at]
    for t in range(rounds):
        here = [k for k in range(len(weights)) if there(k, int(np.floor(hour)))]
        busy = {run[2] for run in training}
        waiting = [k for k in order(t) if k in here and k not in busy]
        while waiting and len(training) < places:
            k = waiting.pop(0)
            training.append([hour + takes(k, t), t, k, w])
        total, weight, ended = np.zeros(len(w)), 0.0, 0
        while training and ended < K:
            training.sort(key=lambda run: run[:3])
            hour, version, k, begun = training.pop(0)
            if k in here:
                theta = np.array(begun)
                for s in range(steps[k]):
                    theta -= eta * gradients[k](theta, version * steps[k] + s)
                total += weights[k] * (1 + t - version) ** -0.5 * (theta - begun)
                weight, ended = weight + weights[k], ended + 1
                stale.append(t - version)
            if waiting:
                k = waiting.pop(0)
                training.append([hour + takes(k, t), t, k, w])
        if not training:
            hour = np.floor(hour) + 1
        w = w + eta_g * total / weight if weight else w
    return w, stale
