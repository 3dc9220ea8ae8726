"""Losses of many clients at once, with their derivatives."""
