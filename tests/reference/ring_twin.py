"""A ring all-reduce by messages: every head has an inbox, and knows what it holds and what arrives, no more."""

from __future__ import annotations

import numpy as np


def ring_by_messages(weights, averages):
    """Every head's copy of the weighted mean, and how many messages were sent."""
    k = len(weights)
    columns = np.array_split(np.arange(averages.shape[1] + 1), k)
    held = [np.append(w * a, w) for w, a in zip(weights, averages, strict=True)]
    sent = 0
    for round_ in range(k - 1):  # reduce, part by part: head h sends part h - round - 1 on
        inbox = {}
        for h in range(k):
            part = (h - round_ - 1) % k
            inbox[(h + 1) % k] = part, held[h][columns[part]].copy()
            sent += 1
        for h, (part, values) in inbox.items():
            held[h][columns[part]] = values + held[h][columns[part]]
    for round_ in range(k - 1):  # gather: head h has part h whole
        inbox = {}
        for h in range(k):
            part = (h - round_) % k
            inbox[(h + 1) % k] = part, held[h][columns[part]].copy()
            sent += 1
        for h, (part, values) in inbox.items():
            held[h][columns[part]] = values
    return np.array([h[:-1] / h[-1] for h in held]), sent
