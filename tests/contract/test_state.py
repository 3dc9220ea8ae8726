"""Personal state: it stays at the site, is replaced by assignment, and follows its clients through any cut."""

import tracemalloc

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.federation import PerRow, Ragged, work
from coterie.objectives.quadratic import Quadratic
from tests.contract.cases import make_federation, quadratic
from tests.contract.conftest import K, M
from tests.messages import names


@work
def write(site, u):
    old = site.state.get("u", np.full(u.shape, -1.0))
    site.state["u"] = u
    return {"old": old, "new": site.state["u"]}


@work
def read(site):
    return dict(site.state)


@work
def read_or(site, default):
    default = np.full(len(site), default)
    return {"u": site.state.get("u", default), "written": site.state.written("u")}


@work
def views(site):
    rows = np.arange(len(site))[::-1]
    view = site.take(rows).take(np.repeat(rows, 2))
    site.state["u"] = site.state["u"] + 1  # views see what the site has just written
    return {"u": view.state["u"][::2], "id": view.ids[1::2], "g": view.objective.gradient(np.ones(3))[::2]}


@work
def write_view(site):
    site.take(slice(None)).state["u"] = np.ones(len(site))
    return {}


@work
def write_state(site):
    site.state["u"][:] = 1
    return {}


def test_state_is_read_only(fed):
    fed.ask(write, u=PerRow(np.ones(M)))
    with pytest.raises((ValueError, CoterieError), match="read-only"):
        fed.ask(write_state)


def test_state_stays_and_is_replaced_by_assignment(fed):
    first, second = np.arange(M, dtype=float), np.arange(M, dtype=float) ** 2
    replies = fed.ask(write, u=PerRow(first))
    np.testing.assert_array_equal(replies["old"], -1)
    np.testing.assert_array_equal(replies["new"], first)
    replies = fed.ask(write, u=PerRow(second))
    np.testing.assert_array_equal(replies["old"], first)  # a reply shows the state before, although it was replaced
    np.testing.assert_array_equal(replies["new"], second)
    np.testing.assert_array_equal(fed.ask(read, to=[5, 1, 1])["u"], second[[5, 1, 1]])


@work
def of_nobody(site):
    nobody = site.take(np.zeros(len(site), dtype=bool))
    values = nobody.state.get("never", np.zeros((0, 2)))
    return {"rows": np.full(len(site), len(values)), "there": np.full(len(site), "never" in nobody.state)}


def test_a_view_of_no_clients_has_what_was_written_and_defaults_for_the_rest(fed):
    replies = fed.ask(of_nobody)
    assert not replies["rows"].any() and not replies["there"].any()


def test_a_name_that_nobody_replied_is_named(fed):
    replies = fed.ask(write, u=PerRow(np.ones(M)))
    with pytest.raises(CoterieError, match=r"^Clients replied no 'knew', only new, old\.$|only old, new\.$"):
        replies["knew"]
    with pytest.raises(KeyError):
        replies["knew"]
    assert replies.get("knew") is None and "knew" not in replies and "new" in replies


@work
def names_of_writers(site):
    some = site.take(site.state.written("u")).take(slice(None))
    return {"names": np.full(len(site), list(some.state) == ["u"]), "count": np.full(len(site), len(some.state))}


def test_a_view_of_those_who_wrote_a_name_lists_it(fed):
    fed.ask(write, to=[7, 2], u=PerRow(np.array([7.0, 2.0])))
    replies = fed.ask(names_of_writers, to=[2, 5, 7])
    assert replies["names"].all() and (replies["count"] == 1).all()


def test_a_part_of_the_clients_writes_its_own_rows(fed):
    fed.ask(write, to=[7, 2], u=PerRow(np.array([7.0, 2.0])))
    expected = np.full(M, 5.0)
    expected[[7, 2]] = [7, 2]
    replies = fed.ask(read_or, default=5.0)
    np.testing.assert_array_equal(replies["u"], expected)
    np.testing.assert_array_equal(np.flatnonzero(replies["written"]), [2, 7])
    np.testing.assert_array_equal(fed.ask(read, to=[7, 2, 7])["u"], [7, 2, 7])
    with pytest.raises((KeyError, CoterieError), match="never wrote it"):
        fed.ask(write_state)
    fed.ask(write, u=PerRow(np.arange(M, dtype=float)))
    np.testing.assert_array_equal(fed.ask(read)["u"], np.arange(M))


@work
def write_some(site, x):
    """Writes only where a block holds such a client at all."""
    if np.any(x):
        site.state["u"] = np.where(x, 3.0, site.state.get("u", np.full(len(site), 5.0)))
    return {}


def test_blocks_that_write_nothing_keep_what_they_had(fed):
    for chosen in ([4, 5], [20]):
        fed.ask(write_some, x=PerRow(np.isin(np.arange(M), chosen)))
    expected = np.where(np.isin(np.arange(M), [4, 5, 20]), 3.0, 5.0)
    np.testing.assert_array_equal(fed.ask(read_or, default=5.0)["u"], expected)


def test_views_inside_work_read_and_do_not_write(fed):
    fed.ask(write, u=PerRow(np.arange(M, dtype=float)))
    replies = fed.ask(views)
    np.testing.assert_array_equal(replies["u"], np.arange(M) + 1)
    np.testing.assert_array_equal(replies["id"], fed.clients.ids)
    np.testing.assert_array_equal(replies["g"], quadratic(M, k=K).objective.gradient(np.ones(3)))
    with pytest.raises(CoterieError, match="whole site"):
        fed.ask(write_view)


def test_repeated_clients_may_not_write_state(fed):
    with pytest.raises(CoterieError, match="asked more than once"):
        fed.ask(write, to=[2, 4, 2], u=PerRow(np.ones(3)))
    assert not fed.ask(read_or, default=0.0)["written"].any()


def test_state_may_change_its_shape_for_all_but_not_for_some(fed):
    fed.ask(write, u=PerRow(np.ones(M)))
    fed.ask(replace, u=PerRow(np.ones((M, 2), np.float32)))
    assert fed.ask(read)["u"].shape == (M, 2) and fed.ask(read)["u"].dtype == np.float32
    with pytest.raises(CoterieError, match="pad to one shape"):
        fed.ask(replace, to=[3], u=PerRow(np.ones((1, 3))))
    assert fed.ask(read)["u"].shape == (M, 2)


@work
def replace(site, u):
    site.state["u"] = u
    return {}


@pytest.mark.parametrize("value", [1.0, np.ones(M + 1)], ids=["scalar", "long"])
def test_state_needs_a_row_for_each_client(fed, value):
    with pytest.raises(CoterieError, match=names("'u' needs row")):
        fed.ask(replace, u=value)


def test_marks_return_the_state_and_can_be_used_again(fed):
    fed.ask(write, u=PerRow(np.full(M, 1.0)))
    assert len(fed.mark("one")) == 0
    for value in (2.0, 3.0):
        fed.ask(write, u=PerRow(np.full(M, value)))
        fed.ask(replace_other, to=[1])
        fed.restore("one")
        state = fed.ask(read)
        np.testing.assert_array_equal(state["u"], 1.0)
        assert set(state) == {"u"}
    with pytest.raises(CoterieError, match="no mark 'two'"):
        fed.restore("two")


@work
def replace_other(site):
    site.state["v"] = np.ones(len(site))
    return {}


def test_a_restored_mark_is_not_written_through(fed):
    fed.ask(write, u=PerRow(np.full(M, 1.0)))
    fed.mark("a")
    fed.ask(write, to=[3], u=PerRow(np.array([5.0])))
    fed.mark("b")
    fed.restore("a")
    fed.ask(write, to=[4], u=PerRow(np.array([6.0])))
    fed.restore("b")
    np.testing.assert_array_equal(fed.ask(read)["u"], np.where(np.arange(M) == 3, 5.0, 1.0))


@work
def reshape_some(site, x):
    if np.any(x):
        site.state["u"] = np.ones((len(site), 2))
    return {}


def test_a_shape_that_changes_for_some_blocks_only_is_refused():
    fed = make_federation("blocks", quadratic(M, k=K))
    fed.ask(write, u=PerRow(np.ones(M)))
    with pytest.raises(CoterieError, match="for some clients only"):
        fed.ask(reshape_some, x=PerRow(np.arange(M) == 4))
    np.testing.assert_array_equal(fed.ask(read)["u"], 1)


@work
def fail_late(site, at):
    site.state["u"] = np.full(len(site), 9.0)
    if np.any(site.ids == at):
        raise RuntimeError("no such luck")
    return {}


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_failing_exchange_wrote_aside_does_not_come_back(threads):
    fed = make_federation("blocks", quadratic(M, k=K), threads=threads)
    with pytest.raises(RuntimeError):
        fed.ask(fail_late, at=int(fed.clients.ids[10]))
    np.testing.assert_array_equal(fed.ask(read_or, default=5.0)["u"], 5.0)
    fed.ask(write, to=[0], u=PerRow(np.array([1.0])))
    np.testing.assert_array_equal(fed.ask(read_or, default=5.0)["u"], [1.0] + [5.0] * (M - 1))


@work
def show_ragged(site, u):
    old = site.state.get("u", np.zeros(len(site)))
    site.state["u"] = u
    return {"old": Ragged(old, np.arange(len(site) + 1))}


def test_a_ragged_reply_shows_the_state_before(fed):
    fed.ask(write, u=PerRow(np.ones(M)))
    np.testing.assert_array_equal(fed.ask(show_ragged, u=PerRow(np.zeros(M)))["old"].values, 1)


@work
def big(site):
    return {"a": np.ones((len(site), 10, 10)), "b": np.ones((len(site), 10))}


def test_rows_of_a_total_never_exist_all_at_once():
    m = 60_000
    fed = InProcess(Quadratic(np.ones((m, 1, 1)), np.ones((m, 1))), np.arange(m) // 600, threads=2)
    fed.total(nothing)
    tracemalloc.start()
    sums = fed.total(big, by="cluster")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(sums["a"], 600)
    assert peak < m * 110 * 8 / 4


@work
def nothing(site):
    return {}


@work
def wide_state(site):
    site.state["w"] = site.state.get("w", np.zeros((len(site), 50))) + 1
    return {}


def test_state_is_held_once():
    m = 60_000
    fed = InProcess(Quadratic(np.ones((m, 1, 1)), np.ones((m, 1))), threads=2)
    fed.total(nothing)
    tracemalloc.start()
    for _ in range(3):
        fed.ask(wide_state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * m * 50 * 8


@work
def bare_array(site, rows):
    return np.ones(rows)


@work
def none_at_all(site, rows):
    site.state["u"] = np.zeros(len(site))


@pytest.mark.parametrize("rows", [1, 2, M])
def test_a_work_that_returns_an_array_is_named_with_what_it_must_return(fed, rows):
    says = rf"test_state:bare_array must return a dict, not an array \({rows},\): arrays by name, a row for each"
    for ask in (fed.ask, fed.total):
        with pytest.raises(CoterieError, match=says):
            ask(bare_array, rows=rows)
    with pytest.raises(CoterieError, match=names("none_at_all return dict not nothing arrays name")):
        fed.ask(none_at_all, rows=rows)
    assert not fed.ask(read_or, default=0.0)["written"].any()
