"""Numbers and findings in plain words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coterie.report import words
from tests.results import factory


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.00"), (39.128, "39.1"), (1234.5, "1,234"), (-0.01234, "−0.0123"), (1.2e-7, "1.20e−07"),
        (5e11, "5.00e+11"), (float("nan"), "–"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text) -> None:
    assert words.number(value) == text


def test_a_column_of_numbers_has_one_number_of_decimals_and_no_negative_zero() -> None:
    assert words.decimals([1.23456, 12.3, 0.001]) == 2
    assert words.decimals([]) == 0
    assert words.decimals([float("nan"), 0.0]) == 0
    assert words.fixed(-0.001, 2) == "0.00"
    assert words.fixed(-1.5, 2) == "−1.50"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (0.001, "<1%"), (0.824, "82%"), (0.999, ">99%"), (1.0, "100%"), (float("nan"), "–")],
)
def test_shares_are_never_rounded_to_all_or_none(share, text) -> None:
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (81_234, "81.2 kB"), (1_234_567, "1.23 MB"), (5e12, "5.00 TB")],
)
def test_bytes_have_a_unit(size, text) -> None:
    assert words.amount(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.371, "0.37 s"), (12.34, "12.3 s"), (125.2, "2 min 5 s")])
def test_seconds_have_a_unit(seconds, text) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("school", "schools"), ("branch", "branches"), ("city", "cities"), ("donors", "donors"), ("woman", "women"),
     ("class", "classes"), ("hospital_id", "hospitals"), ("comm", "comm groups"), ("school_class", "school classes"),
     ("", "clients")],
)  # fmt: skip
def test_plurals(name, text) -> None:
    assert words.several(name) == text


def with_gains(local: list[float], pooled: list[float], recommended: str = "hierarchical"):
    """A result of three schools with given gains."""
    result = factory.world(clients=3, levels=()).result
    best = np.ones(3)
    gains = result.client_gains.assign(gain_over_local=local, gain_over_pooled=pooled, loss_recommended=best)
    gains = gains.assign(loss_local=best + local, loss_pooled=best + pooled)
    losses = pd.DataFrame(
        {"loss_rows": [4.0, 5.0, 3.8]}, index=pd.Index(["local", "pooled", "hierarchical"], name="method")
    )
    return replace(result, client_gains=gains, comparison=losses, recommended=recommended)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            with_gains([0.5, -0.2, 0.1], [1, 1, 1]),
            "The hierarchical model predicts best: the median school has 9.1% less squared error than alone.",
        ),
        (
            with_gains([-0.5, -0.6, 0.1], [1, 1, 1]),
            "The hierarchical model predicts best over rows, but the median school has 100% more squared error than "
            "alone.",
        ),
        (
            with_gains([0.5, 0.6, np.nan], [1, 1, 1]),
            "The hierarchical model predicts best: the median school has 35% less squared error than alone.",
        ),
        (
            with_gains([0, 0, 0], [1, -0.9, 1], "local"),
            "The local model predicts best: the median school has 50% less squared error than pooled.",
        ),
        (
            with_gains([9999, 0.1, -0.2], [1, 1, 1]),
            "The hierarchical model predicts best: the median school has 9.1% less squared error than alone.",
        ),
        (
            replace(with_gains([1, 1, 1], [1, 1, 1]), client_gains=pd.DataFrame()),
            "The hierarchical model predicts best: over rows 5.0% less squared error than alone.",
        ),
    ],
    ids=["one loses", "two lose", "none loses", "local wins", "an outlier", "sums only"],
)  # fmt: skip
def test_the_headline_is_one_claim_of_at_most_twenty_words(result, text) -> None:
    assert words.headline(result) == text and len(text.split()) <= 20


def test_only_clients_that_lose_beyond_noise_are_named() -> None:
    result = with_gains([0.5, -0.2, -0.6], [1, 1, 1])
    assert words.who_loses(result) == ""  # a result of before, which does not say
    gains = result.client_gains.assign(worse_than_local=[False, False, True], worse_than_pooled=False)
    named = replace(result, client_gains=gains, settings={"splits": 5})
    assert words.who_loses(named) == (
        f"1 of 3 schools loses against models of their own beyond the noise of splits: {gains.index[2]}."
    )
    none = replace(named, client_gains=gains.assign(worse_than_local=False))
    assert words.who_loses(none) == "None of 3 schools loses against models of their own beyond the noise of splits."
    untested = none.client_gains.assign(gain_over_local=[0.1, 0.2, np.nan])
    some = "None of 2 schools that were tested loses against"
    assert words.who_loses(replace(none, client_gains=untested)).startswith(some)
    assert words.who_loses(replace(named, settings={"splits": 2})) == "Which schools lose takes 3 splits to tell."


def test_without_a_comparison_the_headline_claims_nothing() -> None:
    result = replace(factory.world().result, comparison=pd.DataFrame(), client_gains=pd.DataFrame())
    assert words.headline(result) == "The hierarchical model of y ~ x for 12 schools."


@pytest.mark.parametrize(
    ("options", "sentences"),
    [
        (
            {"D": np.diag([8.41, 0.0])},
            ["Schools differ in their intercept with a standard deviation of 2.90 around their sector; "
             "they do not differ in x.",
             "Sectors differ in their intercept with a standard deviation of 2.90 around the global model; "
             "they do not differ in x.",
             "Within a school, outcomes scatter around its model with a standard deviation of 1.00."],
        ),
        (
            {"levels": (), "D": np.diag([4.0, 0.25])},
            ["Schools differ around the global model in their intercept (standard deviation 2.00) and in x (0.500).",
             "Within a school, outcomes scatter around its model with a standard deviation of 1.00."],
        ),
        (
            {"levels": (), "D": np.zeros((2, 2)), "family": "binomial"},
            ["Schools do not differ from the global model, in their intercept and x.",
             "Standard deviations are on the scale of the log odds."],
        ),
    ],
    ids=["zero slope", "two", "none"],
)  # fmt: skip
def test_variances_are_said_in_words(options, sentences) -> None:
    assert words.variance_sentences(factory.world(**options).result) == sentences


def test_an_own_variance_for_each_cluster_is_said_as_a_range() -> None:
    result = factory.world(levels=(2,)).result
    own = np.stack([np.diag([1.0, 0.0]), np.diag([4.0, 9.0])])
    text = words.variance_sentences(replace(result, model=replace(result.model, D_client=own)))[0]
    assert text == (
        "Schools differ around their sector by a standard deviation of its own in each: "
        "1.00 to 2.00 in their intercept and 0 to 3.00 in x."
    )


def test_settings_are_cut_short() -> None:
    assert words.plain_text({"a": 1, "b": [True, None]}) == "a: 1, b: yes, none"
    assert words.plain_text(range(3)) == "range(0, 3)"
    assert words.plain_text(list(range(1000))).endswith("10, 11, and 988 more")
    assert words.plain_text([]) == "none"
    assert words.plain_text(0.25) == "0.25"
