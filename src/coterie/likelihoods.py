"""The likelihood of one outcome in each family, as kernels take it: its branches are found by the family's code.

When they change, delete what Numba keeps of the kernels that call them (``find src -name "*.nb[ci]" -delete``): it
looks for changes in a kernel's own file only.
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p, nan, pi

GAUSSIAN, BINOMIAL, POISSON, NEGATIVE_BINOMIAL, GAMMA, STUDENT_T = range(6)
Kind = tuple[int, float, float]
"""What kernels know a family by: its code, its dispersion, and degrees of freedom."""


def derivatives(kind: Kind, eta: float, y: float) -> tuple[float, float, float, float]:
    """Loss (without terms in y alone), score, curvature and its derivative, at one linear predictor.

    The score is minus the derivative of the loss. Where the link is canonical, it is y - mean.
    """
    code, dispersion, degrees = kind
    if code == GAUSSIAN:
        return 0.5 * (y - eta) * (y - eta), y - eta, 1.0, 0.0
    if code == STUDENT_T and dispersion == 0.0:  # of no scale: absolute errors
        return abs(y - eta), 1.0 * (y > eta) - 1.0 * (y < eta), 0.0, 0.0
    if code == STUDENT_T:
        r, room = y - eta, degrees * dispersion
        w = (degrees + 1.0) / (room + r * r)  # as heavy as the row would be among squares
        v = w * (room - r * r) / (room + r * r)
        return 0.5 * (degrees + 1.0) * log1p(r * r / room), w * r, v, 2.0 * w * r * (w + 2.0 * v) / (degrees + 1.0)
    if code == BINOMIAL:
        e = exp(-abs(eta))
        mu = 1.0 / (1.0 + e) if eta >= 0 else e / (1.0 + e)
        v = e / ((1.0 + e) * (1.0 + e))
        return max(eta, 0.0) + log1p(e) - y * eta, y - mu, v, v * (1.0 - 2.0 * mu)
    if code == GAMMA:
        f = y * exp(-eta) / dispersion
        return f + eta / dispersion, f - 1.0 / dispersion, f, -f
    if code == NEGATIVE_BINOMIAL and dispersion > 0.0:  # yes or no of y + 1 / dispersion trials
        z, n = eta + log(dispersion), y + 1.0 / dispersion
        e = exp(-abs(z))
        p = 1.0 / (1.0 + e) if z >= 0 else e / (1.0 + e)
        v = n * e / ((1.0 + e) * (1.0 + e))
        return n * (max(z, 0.0) + log1p(e)) - y * eta, y - n * p, v, v * (1.0 - 2.0 * p)
    mu = exp(eta) if code in (POISSON, NEGATIVE_BINOMIAL) else nan
    return mu - y * eta, y - mu, mu, mu


def constant(kind: Kind, y: float, weight: float) -> float:
    """What a row's negative log-likelihood has beside ``weight`` times the loss: terms in y and the weight alone."""
    code, dispersion, degrees = kind
    if code == GAUSSIAN:
        return 0.5 * (log(2.0 * pi) - log(weight)) if weight > 0.0 else 0.0
    if code == BINOMIAL:  # of shares of as many trials as the weight says
        if y == 0.0 or y == 1.0:
            return 0.0
        return lgamma(weight * y + 1.0) + lgamma(weight * (1.0 - y) + 1.0) - lgamma(weight + 1.0)
    if code == STUDENT_T:
        half = 0.5 * degrees
        return weight * (lgamma(half) - lgamma(half + 0.5) + 0.5 * log(pi * degrees * dispersion))
    if code == POISSON or (code == NEGATIVE_BINOMIAL and dispersion == 0.0):
        return weight * lgamma(y + 1.0)
    shape = 1.0 / dispersion
    if code == NEGATIVE_BINOMIAL:
        return weight * (lgamma(y + 1.0) + lgamma(shape) - lgamma(y + shape) + y * log(shape))
    if code == GAMMA:
        return weight * (lgamma(shape) - shape * log(shape) - (shape - 1.0) * log(y))
    return nan


def most_curved(kind: Kind, one: float, other: float) -> float:
    """Which linear predictor between two has the largest curvature, where curvatures have no bound."""
    code, dispersion, _ = kind
    if code == GAMMA:
        return min(one, other)
    if code == NEGATIVE_BINOMIAL and dispersion > 0.0:
        return max(min(one, other), min(max(one, other), -log(dispersion)))
    return max(one, other)


def above(kind: Kind, eta: float, y: float, curvature: float) -> float:
    """The curvature of a quadratic that touches the loss and is nowhere below it; of a convex loss that of itself."""
    code, dispersion, degrees = kind
    return (degrees + 1.0) / (degrees * dispersion + (y - eta) * (y - eta)) if code == STUDENT_T else curvature


def dispersed(
    kind: Kind, eta: float, y: float, at: tuple[float, float, float, float], degrees: bool
) -> tuple[float, float, float]:
    """Derivatives of a row's negative log-likelihood, score and curvature by the logarithm of the dispersion.

    ``at`` are the derivatives by the linear predictor; or by the logarithm of the ``degrees`` of freedom.
    """

    def digamma(x: float) -> float:  # to 12 digits
        out = 0.0
        while x < 12.0:
            out -= 1.0 / x
            x += 1.0
        f = 1.0 / (x * x)
        return out + log(x) - 0.5 / x - f * (1.0 / 12 - f * (1.0 / 120 - f * (1.0 / 252 - f * (1.0 / 240 - f / 132))))

    code, dispersion, nu = kind
    f, s, v, slope = at
    shape = 1.0 / dispersion
    if code == NEGATIVE_BINOMIAL:
        p = (y - s) / (y + shape)
        of_constant = shape * (digamma(y + shape) - digamma(shape)) - y
        share = shape / (y + shape)
        return of_constant - share * (f + y * eta) + y - s, shape * p - v, slope - share * v
    if code == GAMMA:
        return shape * (log(shape) + 1.0 + log(y) - digamma(shape)) - f, -s, -v
    if code == STUDENT_T:
        share = nu * dispersion / (nu * dispersion + (y - eta) * (y - eta))
        tilt = (nu + 1.0) * shape / nu * share * share * (3.0 - 4.0 * share)
        by = 0.5 - 0.5 * s * (y - eta), -s * share, tilt
        if not degrees:
            return by
        of_constant = 0.5 * nu * (digamma(0.5 * nu) - digamma(0.5 * nu + 0.5))
        each = nu / (nu + 1.0)
        return by[0] + of_constant + each * f, by[1] + each * s, by[2] + each * v
    return nan, nan, nan
