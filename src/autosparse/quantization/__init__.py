"""Integers for real numbers: ranges of activations, scales of weights, and training that feels both."""
