"""The notes' method in loops: blocks in a dict, a client and a layer at a time.

``names[g]`` are the layers of group g's model as (name, size); the augmented model is ``{"s": {name: array},
0: {...}, 1: {...}}``.
"""

import numpy as np


def empty(names, shared, start=0.0):
    """An augmented model."""
    x = {"s": {}}
    for g, layers in enumerate(names):
        x[g] = {}
        for name, size in layers:
            x["s" if name in shared else g].setdefault(name, np.full(size, start))
    return x


def flat(x):
    """x_s, then each group's own layers."""
    return np.concatenate([np.zeros(0), *[layer for block in x.values() for layer in block.values()]])


def fill(x, names, shared, numbers):
    """The augmented model with these numbers."""
    out, at = {block: {} for block in x}, 0
    for block, layers in x.items():
        for name, layer in layers.items():
            out[block][name] = np.array(numbers[at : at + len(layer)])
            at += len(layer)
    return out


def model(x, layers, shared, g):
    """[x_s, x_g] in the order of group g's layers."""
    return np.concatenate([x["s" if name in shared else g][name] for name, _ in layers])


def split(row, layers):
    """A row by layers."""
    out, at = {}, 0
    for name, size in layers:
        out[name] = row[at : at + size]
        at += size
    return out


def assembled(x, names, shared, group, weights, gradients):
    """grad f from every client's own gradient: the notes' three formulas, for any number of groups."""
    total, out = sum(weights), fill(x, names, shared, np.zeros(len(flat(x))))
    for g, layers in enumerate(names):
        mine = [i for i in range(len(group)) if group[i] == g]
        share = sum(weights[i] for i in mine) / total
        if share == 0:
            continue
        mean = sum(weights[i] * gradients[i] for i in mine) / sum(weights[i] for i in mine)
        for name, part in split(mean, layers).items():
            out["s" if name in shared else g][name] += share * part
    return out


def run(x, names, shared, group, weights, gradient, walk, eta, steps, rounds, averaged=False):
    """``rounds`` rounds; ``walk(i, theta, t)``: where client i's local steps of round t lead."""
    for t in range(rounds):
        moves = []
        for i, g in enumerate(group):
            start = model(x, names[g], shared, g)
            moves.append(walk(i, start, t) - start)
        step = assembled(x, names, shared, group, weights, moves)
        for block, layers in x.items():
            lift = 1.0
            if averaged and block != "s":
                lift = sum(weights) / sum(w for w, g in zip(weights, group, strict=True) if g == block)
            for name in layers:
                layers[name] = layers[name] + lift * step[block][name]
    return x


def block_variances(names, shared, group, weights, variances):
    """Of the assembled gradient, from every client's variance by coordinate: x_s first, then each group's own."""
    total, out = sum(weights), [0.0] * (1 + len(names))
    for i, g in enumerate(group):
        for name, part in split(variances[i], names[g]).items():
            out[0 if name in shared else 1 + g] += (weights[i] / total) ** 2 * float(np.sum(part))
    return np.array(out)
