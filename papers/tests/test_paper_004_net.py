"""Section 7 of "Linear speedup in personalized collaborative learning": a net, a main client, related clients."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from papers.outcome import Settings
from papers.paper_004 import net
from papers.paper_004.net import ROWS, SIZES, UNSEEN, USUAL, Found, N, accuracy, cells, clients
from papers.pictures import render


def test_rows_are_apart_and_more_collaborators_leave_the_others_theirs():
    few, X, y = clients(3, 2, 20.0, ROWS)
    many, again, _ = clients(3, 27, 20.0, ROWS)
    assert list(few) == ["main", "helper 1", "helper 2"]
    np.testing.assert_array_equal(X, again)
    for name, (rows, labels) in few.items():
        np.testing.assert_array_equal(rows, many[name][0])
        assert rows.shape == (ROWS, 64) and labels.shape == (ROWS,)
    assert len(X) == len(y) == UNSEEN
    every = np.concatenate([rows for rows, _ in clients(3, 27, 0.0, ROWS)[0].values()])
    seen = {row.tobytes() for row in X}
    assert sum(row.tobytes() in seen for row in every) <= 2  # digits that are there twice


def test_angles_turn_collaborators_only():
    plain, turned = clients(0, 1, 0.0, ROWS)[0], clients(0, 1, 45.0, ROWS)[0]
    np.testing.assert_array_equal(plain["main"][0], turned["main"][0])
    np.testing.assert_array_equal(plain["helper 1"][1], turned["helper 1"][1])
    assert not np.allclose(plain["helper 1"][0], turned["helper 1"][0])


def test_labels_are_wrong_or_of_half_of_the_digits_at_collaborators_only():
    plain, noise, shift = (clients(0, 6, kind, ROWS)[0] for kind in (0.0, net.NOISE, net.SHIFT))
    for name, (rows, labels) in plain.items():
        np.testing.assert_array_equal(rows, noise[name][0])
        assert (np.mean(labels != noise[name][1]) > 0.05) == (name != "main")
    np.testing.assert_array_equal(shift["main"][1], plain["main"][1])
    assert [sorted(set(shift[f"helper {i + 1}"][1] // 5)) for i in range(6)] == [[0], [1]] * 3
    every = np.concatenate([rows for rows, _ in shift.values()])
    assert len({row.tobytes() for row in every}) > 0.98 * len(every)


@pytest.mark.parametrize("method", ["local", "weighted-averaging", "bias-correction", "fedavg"])
def test_the_main_client_learns(method, monkeypatch):
    monkeypatch.setattr(net, "ROUNDS", 15)
    value = accuracy((method, 2, 0.0), 0)
    assert value > 0.15
    assert value * UNSEEN == pytest.approx(round(value * UNSEEN))


def test_rows_that_alone_would_need_are_read_off_between_those_run():
    by = {("local", n, 0.0): np.full(2, level) for n, level in ((1, 0.5), (2, 0.6), (4, 0.7))}
    by[("weighted-averaging", N, 0.0)] = np.full(2, 0.65)
    by[("bias-correction", N, 0.0)] = np.full(2, 0.4)
    by[("fedavg", N, 0.0)] = np.full(2, 0.9)
    found = Found(by)
    assert found.rows(("weighted-averaging", N, 0.0)) == f"{8**0.5:.1f}"
    assert found.rows(("bias-correction", N, 0.0)) == "1 or less"
    assert found.rows(("fedavg", N, 0.0)) == "over 4"
    np.testing.assert_allclose(found.gain(("fedavg", N, 0.0)), 0.4)


def test_tables_and_figure_show_every_cell():
    rng = np.random.default_rng(0)
    found = Found({cell: rng.uniform(0.6, 0.9, 5) for cell in cells(False)})
    shown = len(net.related(found).rows) + len(net.speed_up(found).rows)
    twice = sum(c[1] == N and c[2] in (0.0, USUAL) and c[0] not in ("fedavg", net.HALF) for c in cells(False))
    assert shown == len(cells(False)) + twice + 1  # alone stands in both
    assert {row[1] for row in net.speed_up(found).rows} >= {str(n) for n in SIZES}
    assert b"<svg" in render(lambda: net.draw(found))


@pytest.mark.soak
def test_the_experiment_in_small():
    made = net.run(Settings(quick=True))
    assert [row[0] for row in made.tables[0].rows] == ["alone", *net.METHODS.values()]
