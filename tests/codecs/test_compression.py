"""Feedback: what its memories add up to, and that it makes biased codecs converge."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.codecs import by_name
from coterie.codecs.compression import with_feedback
from coterie.engines import InProcess
from coterie.federation import Site, work
from coterie.numerics import keyed_random
from coterie.objectives.quadratic import NoisyQuadratic

BIASED = ("float16", "topk:0.1", "topk:1", "sign", "kmeans:4", "kmeans:2", "lowrank:1")
biased = pytest.mark.parametrize("name", BIASED)
G = np.random.default_rng(1).normal(size=(3, 20)) * np.array([[1.0], [1e-3], [1e3]])
KEYS = np.arange(3, dtype=np.uint64)
QSGD2 = by_name("qsgd:2")


@biased
def test_error_feedback_loses_nothing(name: str) -> None:
    """All that was read, and what is still kept, is all that was given."""
    codec, memory, read = by_name(name), np.zeros_like(G), np.zeros_like(G)
    for step in range(30):
        sent = with_feedback("ef", memory, G, codec, KEYS, step)
        assert np.array_equal(codec.decode(sent.payload, 20), sent.estimate)
        read, memory = read + sent.estimate, sent.memory
    assert np.allclose(read + memory, 30 * G)
    assert np.all(np.linalg.norm(read / 30 - G, axis=1) < 0.7 * np.linalg.norm(G, axis=1))


@biased
def test_ef21_reaches_a_gradient_that_stays(name: str) -> None:
    codec, memory, reader = by_name(name), np.zeros_like(G), np.zeros_like(G)
    for step in range(400):
        sent = with_feedback("ef21", memory, G, codec, KEYS, step)
        memory, reader = sent.memory, reader + codec.decode(sent.payload, G.shape[1])
    assert np.array_equal(reader, memory)
    assert np.all(np.linalg.norm(reader - G, axis=1) <= 1e-6 * np.linalg.norm(G, axis=1))


def test_without_feedback_the_bias_stays() -> None:
    sent = with_feedback("none", np.zeros_like(G), G, by_name("sign"), KEYS, 0)
    assert not sent.memory.any()
    assert np.array_equal(sent.estimate, by_name("sign").encode(G, KEYS, 0).claimed)


@pytest.mark.parametrize("feedback", ["ef", "ef21"])
def test_memories_are_not_changed_in_place(feedback: str) -> None:
    memory = np.ones_like(G)
    memory.flags.writeable = False
    with_feedback(feedback, memory, G, by_name("sign"), KEYS, 0)
    assert (memory == 1.0).all()


@work
def compressed(site: Site, x: np.ndarray, step: int) -> dict[str, object]:
    gradient = np.outer(site.weights, x)
    keys = keyed_random.starts(site.seed, "codec", site.ids)
    sent = with_feedback("ef", site.state.get("memory", np.zeros_like(gradient)), gradient, QSGD2, keys, step)
    site.state["memory"] = sent.memory
    return {"update": sent.payload}


def test_feedback_is_ordinary_state_of_client_work() -> None:
    """Any partition into blocks sends the same bytes."""
    x, payloads = np.array([1.0, -2.0, 3.0, 0.5]), []
    for block in (2, 4096):
        fed = InProcess(NoisyQuadratic(np.ones((6, 4, 4)), np.zeros((6, 4)), np.zeros(6)), block=block)
        read = np.zeros((6, 4))
        for step in range(40):
            update = fed.ask(compressed, x=x, step=step)["update"]
            read += QSGD2.decode(update, 4)
        assert np.allclose(read / 40, x, atol=0.2)
        assert fed.ledger.bytes_up >= 40 * 6 * 5
        payloads.append(update.values.tobytes())
    assert payloads[0] == payloads[1]
