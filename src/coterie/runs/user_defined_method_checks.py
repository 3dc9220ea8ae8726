"""A method of the user's own while it runs: what it gives is checked, and where it fails, it is said where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from reprlib import repr as short
from traceback import extract_tb
from typing import Any

import numpy as np

from coterie.engines import wire
from coterie.errors import RAISED, CoterieError
from coterie.federation import Federation, Ragged
from coterie.numerics.arrays import Ints

State = Mapping[str, Any]


class CheckedMethod:
    """The method at an import path, for so many clients and numbers of a model: with ``init``, ``run``, ``models``."""

    def __init__(self, path: str, inner: Any, shape: tuple[int, int]) -> None:
        self.path, self.inner, self.shape = path, inner, shape

    @contextmanager
    def _named_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except CoterieError as e:
            if self.path in str(e):
                raise
            raise CoterieError(f"The method '{self.path}' in {name}: {e}") from e
        except RAISED as e:
            at = extract_tb(e.__traceback__)[-1]
            where = f"'{at.filename}', line {at.lineno}"
            raise CoterieError(f"The method '{self.path}' raises {type(e).__name__} in {name} ({where}): {e}.") from e

    def _state(self, state: Any, name: str) -> State:
        if not isinstance(state, Mapping) or "t" not in state or not isinstance(state.get("status"), str):
            raise self._wrong(
                f"states in {name} with t, the rounds that were done, and status, which is "
                '"running" until something is wrong'
            )
        t = state["t"]
        if not isinstance(t, Integral) or isinstance(t, bool):
            raise self._wrong(f"states in {name} whose t, the rounds that were done, is a whole number, not {short(t)}")
        return state

    def _wrong(self, what: str) -> CoterieError:
        return CoterieError(f"The method '{self.path}' must give {what}.")

    def init(self, fed: Federation) -> State:
        """The state before the first round."""
        with self._named_errors("init"):
            state = self._state(self.inner.init(fed), "init")
        if state["t"] != 0:
            raise self._wrong(f"t = 0 in init, not {state['t']}")
        return state

    def run(self, fed: Federation, stops: Sequence[int], state: State) -> Iterator[State]:
        """The states after some rounds: one for each, unless something is wrong."""
        left = iter(stops)
        with self._named_errors("run"):
            for found in self.inner.run(fed, stops, state):
                before, state, stop = state["t"], self._state(found, "run"), next(left, None)
                going = state["status"] == "running"
                if stop is None or not (state["t"] == stop if going else before <= state["t"] <= stop):
                    what = "one more" if stop is None else f"t = {state['t']} where t = {stop} was asked for"
                    raise self._wrong(
                        f"a state for each of stops in run, in their order, whose t is the stop; it gives {what}"
                    )
                yield state
        stop = next(left, None)
        if stop is not None and state["status"] == "running":
            raise self._wrong(
                f'a state for each of stops in run while its status is "running"; it gives none for t = {stop}'
            )

    def models(self, fed: Federation, state: State) -> Any:
        """Models of the clients (m, d), or of all of them (1, d)."""
        with self._named_errors("models"):
            theta = self.inner.models(fed, state)
            theta = theta if isinstance(theta, Ragged) else np.asarray(theta)
        m, d = self.shape
        if isinstance(theta, Ragged):
            lengths = np.diff(theta.offsets)
            if len(lengths) != m or np.any(lengths != d) or theta.values.ndim != 1 or theta.values.dtype.kind != "f":
                raise self._wrong(
                    f"Ragged models as {m} rows of {d} numbers; it gives {len(lengths)} rows of "
                    f"{short(np.unique(lengths).tolist())}, {theta.values.dtype}"
                )
            return theta.values[theta.offsets[0] : theta.offsets[-1]].reshape(m, d)
        if theta.shape not in ((m, d), (1, d)) or theta.dtype.kind != "f":
            raise self._wrong(
                f"models as ({m}, {d}) numbers, a row for each client, or as (1, {d}), one for all; not as "
                f"{theta.dtype} {theta.shape}"
            )
        return theta

    def need_saveable(self, state: State) -> None:
        """Raise for a state that no checkpoint can hold."""
        try:
            wire.pieces(state)
        except CoterieError as e:
            raise CoterieError(f"The state of the method '{self.path}' cannot be saved: {e}") from e

    def about_clients(self, state: State) -> State:
        """What a state says of clients, as far as names that methods here use are used alike in it.

        That is ``quarantined``, ``why`` and ``group``, whole numbers (m,), and ``failed``, which are clients.
        """
        m = self.shape[0]
        of = {name: _whole(state.get(name)) for name in ("quarantined", "why", "group", "failed")}
        out = {name: v for name, v in of.items() if v is not None and v.shape == (m,) and name != "failed"}
        if "quarantined" in out and np.any(out["quarantined"] < 0):
            del out["quarantined"]
        failed = of["failed"]
        if failed is not None and failed.ndim < 2 and len(set(range(m)) & set(failed.ravel().tolist())) == failed.size:
            out["failed"] = failed
        return {"why": np.full(m, -1)} | out


def _whole(value: Any) -> Ints | None:
    """Whole numbers, or None for whatever else."""
    try:
        found = np.asarray(value)
        return found.astype(np.int64) if found.dtype.kind in "iu" else None
    except Exception:  # what a method of the user's own keeps under such a name is its own affair
        return None
