"""Numba kernels over flat arrays. Nothing here knows of profiles as text, of Python objects or of files."""
