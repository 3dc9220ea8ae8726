"""Exact solvers and kernels; imports nothing of coterie but its errors."""
