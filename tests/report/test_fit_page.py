"""The report as a file: self-contained, escaped, small, complete, in every situation a result can be in."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.report import fit_figures, svg
from coterie.report.fit_page import render, write_report
from tests.messages import names
from tests.results import factory

EVIL = "</title><script>alert(1)</script> \"quotes\" 'Ünï' & 学校 {{ 7*7 }}"


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that elements are closed in order."""

    void = frozenset({"meta", "link", "br", "img", "path", "circle", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void or (tag in {"path", "circle", "rect"} and "/>" not in (self.get_starttag_text() or "")):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def cases():
    """Results in every situation, by name."""
    world = factory.world(clients=40, D=np.diag([1.0, 0.2])).result
    m = world.model
    nothing = pd.DataFrame()
    evil = np.array([f"{EVIL} {i}" for i in range(40)], dtype=object)
    flat = replace(
        m, method="pooled", client=np.tile(m.root, (40, 1)), nodes=(), node_cov=(), D_client=np.zeros((1, 2, 2)),
        D_levels=(), personal=np.empty(0, dtype=np.int64),
    )  # fmt: skip
    gains = world.client_gains
    yield "usual", world
    yield "evil", replace(
        factory.world(clients=40, labels=evil).result, formula=EVIL, reason=EVIL, notes=[EVIL], settings={EVIL: EVIL},
        versions={EVIL: EVIL}, data_fingerprint=EVIL,
    )  # fmt: skip
    yield "no comparison", replace(world, comparison=nothing, client_gains=nothing, local_coefficients=None)
    yield "pooled wins", replace(world, recommended="pooled", model=flat)
    yield "local wins", replace(world, recommended="local", model=replace(m, method="local"))
    yield "asked for another", replace(world, recommended="clusterwise")
    yield "no levels", factory.world(clients=5, levels=()).result
    yield "three levels", factory.world(clients=100, levels=(30, 6, 2)).result
    yield "one client", factory.world(clients=1, levels=()).result
    yield "no variance", factory.world(clients=20, D=np.zeros((2, 2))).result
    yield "binomial", factory.world(clients=30, family="binomial", loss="log loss").result
    unknown = replace(m, client_cov=np.full_like(m.client_cov, np.nan))
    yield "no covariance", replace(world, model=unknown, local_coefficients=None)
    yield "own variances", replace(world, model=replace(m, D_client=np.stack([np.eye(2) * (k + 1) for k in range(3)])))
    yield "nobody gains", replace(world, client_gains=gains.assign(gain_over_local=0.0, gain_over_pooled=0.0))
    yield (
        "all gain the same",
        replace(world, client_gains=gains.assign(gain_over_local=1.0, gain_over_pooled=-2.0, rows=7)),
    )
    untested = gains.assign(gain_over_local=np.nan, gain_over_pooled=np.nan)
    yield "nobody tested", replace(world, client_gains=untested)
    local = world.local_coefficients.copy()
    local.iloc[3] = np.nan
    local.iloc[4] = 1e12
    yield "wild local estimates", replace(world, local_coefficients=local)
    huge = gains.assign(
        gain_over_local=gains["gain_over_local"] * 1e9, gain_over_pooled=gains["gain_over_pooled"] * 1e-9
    )
    yield "huge and tiny", replace(world, client_gains=huge)


CASES = dict(cases())


@pytest.mark.parametrize("name", CASES)
def test_every_situation_gives_a_sound_page(name) -> None:
    page = render(CASES[name])
    reader = Reader(page)
    assert not re.search(r"\bnan\b", reader.text.lower())
    assert " inf" not in page
    assert not re.search(r' (?:d|x|y|cx|cy)="[^"]*nan', page)
    kinds = [t for t, _ in reader.tags]
    assert kinds.count("h1") == 1
    assert kinds.count("script") == 1
    levels = [int(t[1]) for t in kinds if re.fullmatch(r"h\d", t)]
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), "a heading level is skipped"
    for tag, attributes in reader.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"]) > 20
        assert not set(attributes) & {"src", "srcset", "action", "onload", "onclick"}
        if "href" in attributes:
            assert attributes["href"] == "data:,"
    assert "http" not in page.replace("http-equiv", "")
    assert "url(" not in page
    assert "@import" not in page


def test_labels_cannot_break_out() -> None:
    page = render(CASES["evil"])
    assert page.count("<script") == 1
    assert "49" not in re.findall(r"学校 (\S+)", page)
    assert "学校" in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("clients", [100, 3_000, 100_000])
def test_size_is_bounded(clients) -> None:
    labels = np.array(
        [f"client number {i} of a long name that goes on and on {EVIL}" for i in range(clients)], dtype=object
    )
    world = factory.world(clients=clients, levels=(clients // 5, 10), labels=labels, rows=1)
    size = len(render(world.result).encode())
    assert size < 600_000


def test_the_number_of_drawn_elements_is_bounded() -> None:
    result = factory.world(clients=20_000, levels=(4_000,), rows=1).result
    drawn = [*fit_figures.gain_figures(result), *fit_figures.shrinkage_figures(result)]
    assert len(drawn) == 6
    assert all(f.svg.count("<") < 5_000 for f in drawn)
    assert "200 of 20,000 schools are drawn" in drawn[-1].caption


def test_the_same_result_gives_the_same_page_also_after_saving(tmp_path) -> None:
    result = CASES["three levels"]
    assert render(result) == render(result)
    result.save(tmp_path / "model")
    assert render(coterie.load(tmp_path / "model")) == render(result)


def test_the_content_comes_in_the_order_of_the_questions() -> None:
    page = render(CASES["usual"])
    marks = ["<h1>", "The methods compared", "Who gains, who loses", "<svg", "How far schools are pulled together",
             "What differs, and by how much", "Notes", "How this was made", "Settings", "Record",
             "would have travelled", "9f86d081884c7d65", "numpy"]  # fmt: skip
    places = [page.index(m, page.index("<body>")) for m in marks]
    assert places == sorted(places)
    assert "1.23 MB from the schools and 81.2 kB to them, in 41 exchanges" in page


def test_the_sorted_gains_cover_the_clients_that_gain_and_lose() -> None:
    result = CASES["usual"]
    first = fit_figures.gain_figures(result)[0]
    gain = result.client_gains["gain_over_local"]
    assert f" {(gain > 0).sum()} do better and {(gain < 0).sum()} worse, noise included;" in first.caption
    assert first.svg.count('class="hover"') == 40
    # Each step of the areas is one client: as many horizontal strokes as gains that are not zero.
    areas = re.findall(r'class="area \w+" d="([^"]+)"', first.svg)
    assert sum(a.count("H") for a in areas) == (gain != 0).sum()


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        ((0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((-0.13, 0.31), [-0.1, 0.0, 0.1, 0.2, 0.3]),
        ((0, 160), [0, 50, 100, 150]),
    ],
)
def test_ticks_are_round_numbers(ends, ticks) -> None:
    np.testing.assert_allclose(svg.nice(*ends), ticks, atol=1e-12)
    assert all(len(svg.decades(10.0**a, 10.0**b)) <= 8 for a in range(4) for b in range(a + 1, 12))


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    file = tmp_path / "report.html"
    write_report(CASES["usual"], file)
    before = file.read_text(encoding="utf-8")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CoterieError, match=names("report written space left device")):
        write_report(CASES["evil"], file)
    assert file.read_text(encoding="utf-8") == before
    assert [f.name for f in tmp_path.iterdir()] == ["report.html"]


def test_a_missing_directory_gets_a_sentence(tmp_path) -> None:
    with pytest.raises(CoterieError, match="The report cannot be written"):
        write_report(CASES["usual"], tmp_path / "nowhere" / "report.html")


ALONE = [{"method": "async-al2sgd"}, {"method": "weighted-averaging"}, {"method": "ifca"}, {"method": "local"}]
"""Methods that say how many rounds, refreshes, exchanges, collaborators and groups there were: here one."""


@pytest.mark.parametrize("asked", ALONE, ids=lambda asked: asked["method"])
def test_one_of_a_thing_is_not_called_several(asked, tmp_path):
    """Two clients, one of one row; one round, one split."""
    table = pd.DataFrame({"town": list("aaaab"), "x": [0.0, 1.0, 0.3, -1.0, 0.0], "y": [0.1, 1.2, 3.0, 2.0, 1.5]})
    if asked["method"] in ("async-al2sgd", "ifca"):
        asked = asked | {"rounds": 1}
    fit = coterie.fit(table, "y ~ x", client="town", splits=1, **asked)
    said = [Reader(render(fit)).text, str(fit), fit.reason, *fit.notes, str(fit.summary())]
    for bad in ("x", "town"):
        gap = table.assign(**{bad: table[bad].where(table.index != 1)})
        with pytest.raises(CoterieError) as refused:
            coterie.fit(gap, "y ~ x", client="town", splits=0)
        left = coterie.fit(gap, "y ~ x", client="town", method="local", missing="drop", splits=0)
        said += [str(refused.value), *left.notes]
    assert re.findall(r"(?<![\d.,])1 (?!does )[a-z]+s\b", "\n".join(said)) == []
