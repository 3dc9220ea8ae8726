"""Problems x libraries: ``python -m benchmarks.peers`` runs what is installed and writes docs/peers.md.

A peer is a file of this folder that says ``NAME``, ``SOLVES`` (names of problems), ``release()`` (what is installed;
any exception means that the peer is missing), and ``fit(problem)``, which gives a ``protocol.Answer``. Its package is
imported within functions, so that the file can be read where the package is missing.
"""
