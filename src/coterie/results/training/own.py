"""A method of the user's own while it runs: what it gives is checked, and where it fails, it is said where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Ragged

State = Mapping[str, Any]


class Own:
    """A method with ``init``, ``run`` and ``models``.

    Parameters
    ----------
    path : str
        Its import path.
    inner : object
        The method.
    shape : (int, int)
        Clients, and numbers of a model.
    """

    def __init__(self, path: str, inner: Any, shape: tuple[int, int]) -> None:
        self.path, self.inner, self.shape = path, inner, shape

    @contextmanager
    def _said(self, name: str) -> Iterator[None]:
        try:
            yield
        except CoterieError:
            raise
        except Exception as e:
            at = extract_tb(e.__traceback__)[-1]
            where = f"'{at.filename}', line {at.lineno}"
            raise CoterieError(f"The method '{self.path}' raises {type(e).__name__} in {name} ({where}): {e}.") from e

    def _state(self, state: Any, name: str) -> State:
        if not isinstance(state, Mapping) or not {"t", "status"} <= state.keys():
            raise CoterieError(
                f"The method '{self.path}' must give states in {name} with t, the rounds that were done, and status, "
                'which is "running" until something is wrong.'
            )
        return state

    def init(self, fed: Federation) -> State:
        """The state before the first round."""
        with self._said("init"):
            return self._state(self.inner.init(fed), "init")

    def run(self, fed: Federation, stops: Sequence[int], state: State) -> Iterator[State]:
        """The states after some rounds."""
        with self._said("run"):
            for found in self.inner.run(fed, stops, state):
                yield self._state(found, "run")

    def models(self, fed: Federation, state: State) -> Any:
        """Models of the clients (m, d), or of all of them (1, d)."""
        with self._said("models"):
            theta = self.inner.models(fed, state)
            if isinstance(theta, Ragged):
                return theta
            theta = np.asarray(theta)
        m, d = self.shape
        if theta.shape not in ((m, d), (1, d)) or theta.dtype.kind != "f":
            raise CoterieError(
                f"The method '{self.path}' must give models as ({m}, {d}) numbers, a row for each client, or as "
                f"(1, {d}), one for all; not as {theta.dtype} {theta.shape}."
            )
        return theta
