"""Algorithm 3 on the noisy quadratic, run by run and step by step, from the pseudo-code and section 6."""

import numpy as np

from coterie.numerics import keyed_random


def pair(seed, stream, run, step, d):
    """Two standard normal vectors (d,) by Box and Muller, from 2 d uniform numbers."""
    u = keyed_random.uniform(seed, stream, [run], step, 2 * d)[0].reshape(d, 2)
    radius, angle = np.sqrt(-2.0 * np.log1p(-u[:, 0])), 2.0 * np.pi * u[:, 1]
    return radius * np.cos(angle), radius * np.sin(angle)


def losses(curve, times, run, seed):
    """Test losses (s,) of one run."""
    d, x, out = len(curve.x0), curve.start, []
    for t in range(max(times) + 1):
        if t in times:
            out.append(0.5 * (x - curve.x0) @ curve.A0 @ (x - curve.x0))
        xi0, xi1 = pair(seed, "noisy quadratic", run, t, d)
        g0 = curve.A0 @ (x - curve.x0) + curve.sigma * xi0
        g_avg = curve.A1 @ (x - curve.x1) + curve.sigma / np.sqrt(curve.N) * xi1
        b = g_avg - g0
        if t == 0:
            c = np.zeros(d)
            if curve.c0:
                # The sum of S - 1 more observed biases: S - 1 times their mean, with noise of S - 1 times the variance.
                S = curve.c0
                xi0, xi1 = pair(seed, "noisy quadratic, first bias", run, 0, d)
                bias = curve.A1 @ (x - curve.x1) - curve.A0 @ (x - curve.x0)
                noise = curve.sigma / np.sqrt(curve.N) * xi1 - curve.sigma * xi0
                c = (b + (S - 1) * bias + np.sqrt(S - 1) * noise) / S
        x = x - curve.eta * ((1 - curve.alpha) * g0 + curve.alpha * (g_avg - c))
        c = (1 - curve.beta) * c + curve.beta * b
    return np.array(out)
