"""Attaches a method to a model; owns time, state and the way back to a plain model."""

from autosparse.sparsifier.sparsifier import Sparsifier, sparsify

__all__ = ["Sparsifier", "sparsify"]
