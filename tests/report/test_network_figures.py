"""Pictures of a network and of the tree of merges: all is drawn, escaped, bounded, and says what was cut."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from importlib.resources import files

import numpy as np
import pytest

from coterie.relations.clusters import merge_tree
from coterie.relations.network import Network
from coterie.report.network_figures import EDGES, LEAVES, merge_figure, network_figure, spring_layout


def parsed(figure):
    return ET.fromstring(figure.svg)  # noqa: S314


def classes(figure, tag):
    return [e.get("class") for e in parsed(figure).iter(tag)]


def drawn(network, place=None, groups=None):
    """A network whose clients are numbered from 1, by default in one group."""
    place = spring_layout(network) if place is None else place
    groups = np.zeros(network.n, dtype=int) if groups is None else groups
    return network_figure(network, place, groups, range(1, network.n + 1))


def six():
    return Network.of(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [1.0, 1.0, 0.5, 2.0, 2.0])


def test_every_client_and_tie_is_drawn_in_its_groups_colour():
    network = six()
    groups = np.array(["b", "b", "b", "a", "a", "a"])
    figure = network_figure(network, spring_layout(network), groups, list("ABCDEF"))
    root = parsed(figure)
    nodes = [e for e in root.iter("circle") if e.find("title") is not None]
    assert [e.get("class") for e in nodes] == ["node g1"] * 3 + ["node g0"] * 3
    assert [e.find("title").text for e in nodes] == [f"{n}: {'b' if n < 'D' else 'a'}" for n in "ABCDEF"]
    ties = {e.get("class"): e.get("d").count("M") for e in root.iter("path")}
    assert ties == {"within g0": 2, "within g1": 2, "between": 1}
    texts = [e.text for e in root.iter("text")]
    assert texts == ["a (3)", "b (3)"]
    assert "6 clients, 5 ties" in figure.caption
    assert "92% of ties by weight lie within a group" in figure.caption


def test_stronger_ties_are_wider():
    network = Network.of(4, [(0, 1), (1, 2), (2, 3)], [0.1, 1.0, 5.0])
    widths = [float(w) for w in re.findall(r'stroke-width="([\d.]+)"', drawn(network).svg)]
    assert len(set(widths)) == 3


def test_names_are_escaped():
    names = ["<script>", "a & b", '"', "'", "</svg>", "é"]
    figure = network_figure(six(), spring_layout(six()), np.array(names), names)
    assert "<script>" not in figure.svg
    assert {e.text.split(":")[0] for e in parsed(figure).iter("title")} == set(names)


def test_more_groups_than_colours_are_put_together():
    network = Network.random(120, 3)
    figure = drawn(network, groups=np.minimum(np.arange(120) % 23, 11))
    texts = [e.text for e in parsed(figure).iter("text")]
    assert texts[0] == "11 (60)"
    assert texts[-1].startswith("4 more (")
    assert "node gx" in classes(figure, "circle")


def test_clients_that_merged_with_nobody_are_one_kind_without_a_colour():
    network = six()
    figure = network_figure(network, spring_layout(network), np.array([1, 2, 3, 3, 4, 5]), list("ABCDEF"))
    nodes = [e for e in parsed(figure).iter("circle") if e.find("title") is not None]
    assert [e.get("class") for e in nodes] == [*["node gx"] * 2, *["node g0"] * 2, *["node gx"] * 2]
    assert [e.find("title").text for e in nodes][:3] == ["A: alone", "B: alone", "C: 3"]
    assert [e.text for e in parsed(figure).iter("text")] == ["3 (2)", "alone (4)"]
    ties = [(e.get("class"), e.get("d").count("M")) for e in parsed(figure).iter("path")]
    assert sum(count for _, count in ties) == 5
    assert [count for kind, count in ties if kind != "between"] == [1]


def test_many_clients_and_ties_are_a_bounded_picture():
    network = Network.random(4000, 5)
    place = np.random.default_rng(0).normal(size=(4000, 2))
    figure = drawn(network, place, np.arange(4000) % 3)
    paths = list(parsed(figure).iter("path"))
    assert len(paths) < 20
    assert sum(e.get("d").count("h0") for e in paths) == 4000
    assert sum(e.get("d").count("L") for e in paths) == EDGES
    assert f"{EDGES:,} ties are drawn" in figure.caption


@pytest.mark.parametrize("n", [1, 2, 5])
def test_small_and_empty_networks(n):
    network = Network.of(n, [])
    figure = drawn(network)
    assert classes(figure, "circle") == ["node g0" if n > 1 else "node gx"] * (n + 1)  # that of the legend, too
    assert "nan" not in figure.svg
    assert figure.caption.startswith("1 client, 0 ties" if n == 1 else f"{n} clients, 0 ties, in {n} pieces")


def test_all_lies_within_the_picture():
    network = Network.random(80, 4)
    root = parsed(drawn(network, 100.0 * spring_layout(network) + 7.0, np.arange(80) % 8))
    _, _, width, height = (float(v) for v in root.get("viewBox").split())
    for e in root.iter("circle"):
        assert 5.0 < float(e.get("cx")) < width - 5.0
        assert 5.0 < float(e.get("cy")) < height - 5.0


# -- the tree


def merging(merges, n, groups=None):
    """Clients that are numbered from 1 and merge, by default of one group."""
    return merge_figure(merges, np.zeros(n, dtype=int) if groups is None else groups, range(1, n + 1))


def tree():
    labels = [[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4], [0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 1], [0] * 6]
    return merge_tree(np.array([0.0, 0.1, 0.5, 1.0, 8.0]), [np.array(v) for v in labels])


def moves(figure):
    """Classes of branches, and the numbers of their lines: (x, y, "H" or "V", to)."""
    return {
        e.get("class"): [
            (float(x), float(y), way, float(to))
            for x, y, way, to in re.findall(r"M([\d.]+) ([\d.]+)([HV])([\d.]+)", e.get("d"))
        ]
        for e in parsed(figure).iter("path")
        if e.get("class").startswith("branch")
    }


def test_the_tree_joins_branches_where_groups_merge():
    figure = merge_figure(tree().merges, np.array(list("xxxyyy")), list("ABCDEF"), 2.0)
    found = moves(figure)
    bars = {kind: [m for m in each if m[2] == "V"] for kind, each in found.items()}
    assert {kind: len(found) for kind, found in bars.items()} == {"branch g0": 2, "branch g1": 2, "branch gx": 1}
    x = [m[0] for kind in ("branch g0", "branch g1") for m in bars[kind]]
    assert x[0] < x[1] < bars["branch gx"][0][0]
    assert x[1] == x[2] < x[3]
    texts = [e.text for e in parsed(figure).iter("text")]
    assert [t for t in texts if t in list("ABCDEF")] == list("ABCDEF")
    assert {"chosen", "λ", "x (3)", "y (3)"} <= set(texts)
    assert figure.caption == "6 clients; 1 group is left at the largest λ; 2.00 was chosen."


def test_branches_do_not_cross():
    rng = np.random.default_rng(0)
    labels, now = [], np.arange(40)
    while now.max() > 0:
        labels.append(now)
        a, b = rng.choice(now.max() + 1, 2, replace=False)
        now = np.unique(np.where(now == a, b, now), return_inverse=True)[1]
    figure = merging(merge_tree(np.arange(1.0, len(labels) + 1), labels).merges, 40)
    lines = [m for found in moves(figure).values() for m in found]
    level = [(m[0], m[3], m[1]) for m in lines if m[2] == "H"]
    for x, top, _, base in (m for m in lines if m[2] == "V"):
        for low, high, y in level:
            assert not (low + 0.2 < x < high - 0.2 and min(top, base) + 0.2 < y < max(top, base) - 0.2)


def test_a_tree_of_many_clients_is_thinned_and_says_so():
    n = 1000
    labels = [np.arange(n), np.arange(n) // 10, np.arange(n) // 100, np.zeros(n, dtype=int)]
    figure = merging(merge_tree(np.array([0.1, 1.0, 2.0, 3.0]), labels).merges, n, np.arange(n) // 100)
    lines = [m for found in moves(figure).values() for m in found]
    left = min(m[0] for m in lines)
    assert sum(m[2] == "H" and m[0] == left for m in lines) == LEAVES
    assert f"{LEAVES} of them are drawn" in figure.caption


def test_trees_without_merges_and_of_clients_that_are_equal_from_the_start():
    assert "5 groups are left" in merging([], 5).caption
    figure = merging([(0.0, (0, 1), 2), (1.0, (0, 2), 3)], 3)
    assert "nan" not in figure.svg
    assert "1 group is left" in figure.caption


@pytest.mark.parametrize("n", [6, 200])
def test_pictures_have_a_description_and_only_classes_that_the_page_has_a_style_for(n):
    network, style = Network.random(n, 3), files("coterie.report").joinpath("templates/style.css").read_text("utf-8")
    for figure in (drawn(network, groups=np.arange(n) % 12), merging([], n)):
        used = {kind for e in parsed(figure).iter() for kind in e.get("class", "").split()}
        assert [kind for kind in used if not re.search(rf"\.{kind}\b", style)] == []
        assert parsed(figure).get("aria-label").startswith(figure.title)
        assert 'role="img"' in figure.svg
