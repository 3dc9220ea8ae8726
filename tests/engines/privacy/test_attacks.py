"""What the attacks of benchmarks/attacks.py recover on heart: all of it without a mode, and less with each."""

import numpy as np
import pytest

pytest.importorskip("dp_accounting")

from benchmarks import attacks


def test_membership_is_certain_without_noise_and_close_to_a_coin_where_clients_hide():
    modes = attacks.modes(1)
    area = {
        name: attacks.membership(ask, np.inf if "hidden" not in name else attacks.CLIP, "secure" in name, trials=30)
        for name, ask in modes.items()
    }
    assert area["plain"] == 1.0
    assert 0.5 <= area["rows hidden, epsilon 1"] < area["rows hidden, epsilon 8"] < area["plain"]
    # no attack's true positives are more than exp(epsilon) times its false ones: an area of exp(1) / (1 + exp(1)) = .73
    assert area["rows hidden, epsilon 1"] < 0.73 + 0.1  # of 30 rows


def test_rows_are_recovered_from_plain_sums_and_not_from_noisy_ones():
    modes = attacks.modes(attacks.ASKED)
    error = {name: attacks.inversion(modes[name], 1, False, trials=2) for name in ("plain", "rows hidden, epsilon 8")}
    assert error["plain"] < 0.01 < 0.3 < error["rows hidden, epsilon 8"]
