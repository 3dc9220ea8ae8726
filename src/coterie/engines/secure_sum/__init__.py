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

Why it is built here
--------------------
Flower's SecAgg+ (1.42) runs inside its legacy server alone (it asks for a ``LegacyContext``), carries weighted averages
of model parameters clipped and rounded at random to 22 bits, where the exact fit needs sums right to 1e-10, and expands
every seed through a Mersenne Twister of which it sets 32 bits, so that masks can be found by trying. DecLearn's
(2.9) stops when one site drops out, draws its masks from a generator that is not made for secrets, and needs a pandas
that this package cannot use. NVFlare's homomorphic encryption lets every site decrypt. None carries bytes over another
engine. Curves, ciphers and hashes come from ``cryptography``; sharing, fixed point and the order of steps are ours.

Threat model
------------
Protected: what one site sends to ``total``, and sums over any part of the sites, from

* the coordinator and the network, if the coordinator follows the protocol but keeps and studies all it sees;
* c sites that work together with it, if c < t and c <= m - 2. Here m is ``min_sites``, how many sites a sum covers
  whoever is away; every site checks it, before it masks and before it helps to open. Fewer than t sites open nothing by
  themselves, and a sum over m sites less what c of them sent is one over two others or more. By default t is the
  smallest majority of the n sites and m is t + 1, which makes it c < t; where t is n, m is n and c at most n - 2.

An *active* coordinator, which lies: it cannot pose as a site, since every key is signed by an identity that each site
has been given beforehand, and shares are encrypted from site to site. As long as 2 t > n + c, where c sites work with
it, and c <= m - 2, it reads no single site either: any two sets of t sites have one in common that does not work with
it, and such a site puts each key into one sum over one set of sites. So no key is opened in two ways or in another sum
than it masked, and what is opened covers m sites that took part. For a majority of an odd number c is 0; choose
``threshold`` accordingly. It can leave sites out and call them missing, so that sums cover fewer of them (but no fewer
than m, which sites check as far as they are told the truth about who has clients in which group); ask for the same sum
over other sites; or give a false total to everyone. And it chooses the questions: it may ``ask`` in the clear,
or put to the other sites of a sum a question whose answer it knows, and read off what one of them holds. Masks protect
from a coordinator that keeps to its program. Nothing here keeps sites from sending false numbers.

A site must not forget which keys it used and what it revealed. One whose folder was deleted has another life, so that
nothing made before counts at it any more. But its folder is never restored from an older copy: one that was uses a key
twice where an active coordinator asks for that, and the difference of what it masked is open.

Not protected: sums themselves, which may tell much where groups are small or asked for often; **differences of sums**
over nearly the same sites or clients (one client less is that client), a sum that is asked for again because the
coordinator was restarted in the middle of it included; all that is sent with ``ask``; names, types and shapes of sums,
who has how many clients in which group, how many gradients a site computed, who answered and when. Who takes the
identities of t sites from their disks and has recorded all messages can open the sums of the past. Differential privacy
is a separate protection.

``Secure`` are the settings, ``Identity`` a site's long-term keys, ``SecureSite`` a site's side, ``KeyOffers`` and
``MaskedSum`` the coordinator's, and ``SecureExchange`` carries them over the engines.
"""

from coterie.engines.secure_sum.coordinator import KeyOffers, MaskedSum, SecureExchange
from coterie.engines.secure_sum.crypto import Identity
from coterie.engines.secure_sum.protocol import Secure
from coterie.engines.secure_sum.site import SecureSite, secure_sites

__all__ = ["Identity", "KeyOffers", "MaskedSum", "Secure", "SecureExchange", "SecureSite", "secure_sites"]
