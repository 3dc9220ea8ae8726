"""Columns in which gradient steps mean the same in every direction, whatever the units and zeros of a table's.

With ``theta = at + size R u`` all rows together have curvature one in u where a run begins: at the model that has an
intercept alone. Columns that clients share are combinations of shared ones, so that shared parts of u are those of
theta. Sites keep the frame and turn their own rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from coterie.federation import Federation, Site, Work, find_work, require_all_replies, work, work_name
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.penalised_tree import prepare, standard_units
from coterie.numerics.arrays import Floats, Ints, full
from coterie.objectives.glm import GLM
from coterie.queries import Query, WrappedFederation

Reply = dict[str, Any]
NEWTON, LONGEST, NEAR = 30, 2.0, 1e-3
"""Steps to the first intercept at most, how long each may be, and when it is near enough."""
NOTHING = 1e-10  # of a column's square is left where others make it up
ROOM = "coterie.methods."


@dataclass(frozen=True)
class Frame:
    """An affine change of parameters, by which outcomes with a residual variance are divided by ``size``, too."""

    at: Floats  # (p,) where u is zero
    R: Floats  # (p, p)
    size: float = 1.0

    def theta(self, u: Floats) -> Floats:
        """Parameters (..., p) of the table."""
        return np.asarray(self.at + self.size * (u @ self.R.T))

    @property
    def row(self) -> Floats:
        """All numbers, as sites keep them."""
        return np.concatenate([[self.size], self.at, self.R.ravel()])

    @classmethod
    def of_row(cls, row: Floats) -> Frame:
        """From those numbers."""
        p = int(np.sqrt(len(row) - 0.75))  # p^2 + p + 1 of them
        return cls(np.array(row[1 : p + 1]), row[p + 1 :].reshape(p, p), float(row[0]))


@work
def expanded_at(site: Site, at: Floats | None) -> Reply:
    """Clients' losses at one model, by default zero, to second order, to be added up."""
    glm = _rows_to_train_on(site)
    model = np.zeros(glm.p) if at is None else at
    loss, score, A, _ = glm.derivatives(np.ones(glm.p), np.tile(model, (len(site), 1)), bounded=True)
    return {"loss": loss, "score": score, "A": A, "w": glm.sizes()}


@work
def keep_frame(site: Site, row: Floats) -> Reply:
    """Remember the frame."""
    site.state["frame"] = np.tile(row, (len(site), 1))
    return {}


def well_scaled(fed: Federation, problem: GroupedProblem) -> Frame:
    """Agree on a frame, in a few exchanges of sums; what rows do not tell from other coefficients stays as it is."""
    constant, basis = problem.intercept, problem.basis
    if basis is not None and constant is not None and np.count_nonzero(basis.matrix[:, constant]) > 1:
        constant = None  # no column is
    s = require_all_replies(fed.total(expanded_at, at=None))
    at = np.zeros(s["score"].shape[-1])
    for k in range(NEWTON if constant is not None else 0):
        step = float(s["score"][constant] / full(s["A"])[constant, constant])
        if k and abs(step) <= NEAR * max(1.0, float(abs(at[constant]))):
            break
        at[constant] += step if problem.family.any_number else float(np.clip(step, -LONGEST, LONGEST))
        s = require_all_replies(fed.total(expanded_at, at=at))
    weight = float(s["w"])
    size = float(np.sqrt(2.0 * s["loss"] / weight)) if problem.family.has_dispersion else 1.0
    frame = Frame(at, _whitening(full(s["A"]) / weight, problem), size if size > 0.0 else 1.0)
    require_all_replies(fed.ask(keep_frame, row=frame.row))
    return frame


def in_standard_columns(fed: Federation, problem: GroupedProblem, all_columns: bool = True) -> tuple[InFrame, Floats]:
    """The federation in columns less their means, in standard units; and what takes coefficients to the table's (p, p).

    Ties there depend on no column's zero or unit. Where clients share the intercept, personal columns keep their zero:
    they have no intercept of their own to move it to. Where not ``all_columns`` are meant, personal ones stay as they
    are, but for a constant that is the same for all: ties are then those of the table.
    """
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    standard = standard_units(setup.mean / setup.unit, setup.unit, problem.intercept)
    if problem.intercept is not None and problem.intercept not in problem.personal:
        standard[problem.intercept, problem.personal] = 0.0
    if not all_columns:
        standard[:, problem.personal] = np.eye(setup.p)[:, problem.personal]
    frame = Frame(np.zeros(setup.p), np.asarray(np.linalg.inv(standard), dtype=np.float64))
    require_all_replies(fed.ask(keep_frame, row=frame.row))
    return InFrame(fed), frame.R


def _whitening(H: Floats, problem: GroupedProblem) -> Floats:
    """R with ``R' H R = I``, whose rows of shared columns are zero but for shared ones.

    Columns are made orthogonal one after the other, the intercept first, so that no zero of a column changes what u is.
    """
    first, own = np.arange(len(H)) == problem.intercept, np.isin(np.arange(len(H)), problem.personal)
    # the last coefficient depends on all of u, the first on its own alone
    order = np.lexsort((-np.arange(len(H)), first, own))
    try:
        root = _root(H, order)
    except np.linalg.LinAlgError:  # such as a column that is 0 in all rows of a split: its coefficient stays 0
        order = _told_apart(H, order)
        root = _root(H, order)
    R = np.zeros_like(H)
    R[np.ix_(order, order)] = root
    return R


def _root(H: Floats, order: Ints) -> Floats:
    """The part of R of some columns."""
    if not np.all(np.diag(H)[order] > 0.0):
        raise np.linalg.LinAlgError
    unit = 1.0 / np.sqrt(np.diag(H)[order])
    alike = np.linalg.inv(H[np.ix_(order, order)] * unit * unit[:, None])
    return np.asarray(unit[:, None] * np.linalg.cholesky((alike + alike.T) / 2.0))


def _told_apart(H: Floats, order: Ints) -> Ints:
    """Of columns in order those that rows tell from the ones after them."""
    kept: list[int] = []
    for j in order[::-1]:
        rest = H[j, kept] @ np.linalg.solve(H[np.ix_(kept, kept)], H[kept, j])
        if H[j, j] - rest > NOTHING * H[j, j]:
            kept.append(int(j))
    return np.array(kept[::-1], dtype=np.int64)


def _rows_to_train_on(site: Site) -> GLM:
    glm: GLM = getattr(site.objective, "train", site.objective)
    return glm


_TURNING = Lock()  # blocks of clients wait for the first of them to turn all rows


def turned(glm: GLM, row: Floats) -> GLM:
    """The same clients in a frame; turned rows stay with the table's, until there is another frame."""
    frame, rows = row.tobytes(), (glm.X, glm.y, glm.offset)
    with _TURNING:
        before, of, out = glm.made.get("turned", (b"", rows, rows))
        if before != frame or any(old is not now for old, now in zip(of, rows, strict=True)):
            out = _turn(glm, Frame.of_row(row))
            glm.made["turned"] = frame, rows, out
    X, y, offset = out
    return replace(glm, X=X, y=y, offset=offset)


def _turn(glm: GLM, frame: Frame) -> tuple[Floats, Floats, Floats]:
    X, start = np.ascontiguousarray(glm.X @ frame.R), glm.offset + glm.X @ frame.at
    if not glm.family.has_dispersion:
        return X, glm.y, start
    return X, (glm.y - start) / frame.size, np.zeros(len(start))


@work
def in_frame(site: Site, inner: str, **message: Any) -> Reply:
    """Work of a method, on rows in the frame that the site keeps."""
    view = copy(site)
    view.objective = turned(_rows_to_train_on(site), site.state["frame"][0])
    out: Mapping[str, Any] = find_work(ROOM + inner)(view, **message)
    return dict(out)


class InFrame(WrappedFederation):
    """A federation whose sites keep a frame: parameters that travel are those in it."""

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        if (together := getattr(fed, "together", None)) is not None:
            self.together = lambda work, /, **message: together(in_frame, **_inside(work, message))

    def _answer(self, query: Query) -> Any:
        return query._replace(work=in_frame, message=_inside(query.work, query.message)).of(self.fed)


def _inside(work: Work, message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "inner": work_name(work).removeprefix(ROOM)}
