"""Secure sums: the coordinator learns the sum over sites, and nothing else of what each of them sent.

After Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal and Seth, "Practical secure aggregation for
privacy-preserving machine learning", CCS 2017. Site i sends, modulo 2^128,

    y_i = x_i + PRG(b_i) + sum over j > i of PRG(s_ij) - sum over j < i of PRG(s_ij),

where x_i are its numbers in fixed point, b_i is a seed of its own, and s_ij is a key that it agrees with site j
(X25519). Masks of pairs cancel in the sum over all sites. Every site has shared b_i and its private key with all sites
beforehand (Shamir, any t of n), so that the sites can open the sum of those that answered: of these they reveal shares
of b_i, of those that dropped out shares of the private key, and never of both. Before any is revealed, t sites sign
which sites the sum is over (section 6.2 there), each once for every key. Keys are used for one sum. A site's reply
brings its keys for the next one, so a sum costs three exchanges (masked sums, signatures, shares), and whoever has
missed one joins by an exchange before. Where somebody is new, that takes two: keys are made for the *lives* of the
sites that share them, a random number of each that is drawn with its memory and goes into all that is signed and
encrypted.

What it protects from whom is in ``SECURITY.md``; why it is built here, too.

``Secure`` are the settings, ``Identity`` a site's long-term keys, ``SecureSite`` a site's side, ``KeyOffers`` and
``MaskedSum`` the coordinator's, and ``SecureExchange`` carries them over the engines.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.engines.secure_sum.coordinator import KeyOffers, MaskedSum, SecureExchange
    from coterie.engines.secure_sum.crypto import Identity
    from coterie.engines.secure_sum.protocol import Secure
    from coterie.engines.secure_sum.site import SecureSite, secure_sites

_HOMES = {"Identity": "crypto", "Secure": "protocol", "SecureSite": "site", "secure_sites": "site"}
_HOMES |= dict.fromkeys(("KeyOffers", "MaskedSum", "SecureExchange"), "coordinator")
__all__ = ["Identity", "KeyOffers", "MaskedSum", "Secure", "SecureExchange", "SecureSite", "secure_sites"]


def __getattr__(name: str) -> Any:
    """Loaded when it is first asked for, since it needs the package cryptography."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
