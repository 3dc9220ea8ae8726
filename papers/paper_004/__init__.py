"""Linear speedup in personalized collaborative learning: the noisy quadratic of section 6 and the speed-up maps."""
