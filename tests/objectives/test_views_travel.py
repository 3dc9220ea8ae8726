"""What is sent of an objective that is a view: the rows of its own clients, and numbers as they were."""

import pickle

import numpy as np
import pytest

from coterie.objectives.glm import GLM
from coterie.objectives.mixed import Mixed
from coterie.objectives.softmax import Softmax

ROWS = np.array([0, 400, 3, 0, 597])  # of 5 clients
STOPS = np.cumsum(ROWS)
RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(1000, 4)), RNG.integers(0, 2, 1000).astype(float), RNG.uniform(1.0, 2.0, 1000)
RANGES = STOPS - ROWS, STOPS


def nets():
    torch = pytest.importorskip("torch")
    from coterie.objectives.deep.objective import Deep

    labels = ["a", "b", "c", "d", "e"]
    return Deep.of(torch.nn.Linear(4, 2), X, Y.astype(int), *RANGES, weights=W, labels=labels, dtype="float64")


def mixed():
    return Mixed.of([glm(), softmax()])


def glm():
    return GLM(X, Y, 0.1 * Y, W, *RANGES)


def softmax():
    return Softmax.of(X, Y, *RANGES, weights=W, classes=2)


@pytest.mark.parametrize("make", [glm, softmax, nets, mixed])
@pytest.mark.parametrize("chosen", [[2], [2, 3], [0, 3], [2, 4], [4, 2], [0, 1, 2, 3, 4]], ids=str)
def test_a_view_travels_with_its_own_rows_alone(make, chosen):
    whole = make()
    view = whole.take(np.array(chosen))
    sent = pickle.dumps(view)
    got = pickle.loads(sent)  # noqa: S301
    theta = RNG.normal(size=(len(chosen), whole.take(np.array([1])).dim))
    np.testing.assert_array_equal(got.value(theta), view.value(theta))
    np.testing.assert_array_equal(got.sizes(), view.sizes())
    own = 8 * 7 * ROWS[chosen].sum()
    assert len(sent) < own + 6000


def test_a_net_that_travelled_calls_its_clients_by_their_names():
    view = nets().take(np.array([2, 4]))
    assert pickle.loads(pickle.dumps(view)).rows.place(5) == view.rows.place(405) == "a row of client e"  # noqa: S301
