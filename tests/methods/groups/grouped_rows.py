"""Rows of clients in groups that read classes in their own ways."""

from __future__ import annotations

from functools import partial

import numpy as np

from coterie.engines import InProcess
from coterie.objectives.holdout import hold_out
from coterie.objectives.softmax import Softmax

K = 3


def rows(groups=3, each=6, n=20, seed=0, wrong=0.0):
    """Clients of a group read three classes off two columns in their own way: X, y, starts, stops, groups."""
    rng = np.random.default_rng(seed)
    m = groups * each
    known = np.arange(m) % groups
    X = np.concatenate([np.ones((m * n, 1)), rng.normal(size=(m * n, 4))], axis=1)
    way = np.concatenate([np.zeros((groups, 1, K)), 2.0 * rng.normal(size=(groups, 4, K))], axis=1)
    logits = np.einsum("rj,rjk->rk", X, way[np.repeat(known, n)])
    y = (logits + wrong * rng.normal(size=logits.shape)).argmax(axis=1)
    stops = n * np.arange(1, m + 1)
    return X, y, stops - n, stops, known


softmax = partial(Softmax.of, classes=K, ridge=1e-3)


def federation(**how):
    X, y, starts, stops, known = rows(**how)
    return InProcess(softmax(X, y, starts, stops)), known


def keeping(fraction=0.3, **how):
    X, y, starts, stops, known = rows(**how)
    return InProcess(hold_out(softmax, X, y, starts, stops, fraction)), known
