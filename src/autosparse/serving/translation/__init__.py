"""Decoding of translation models."""
