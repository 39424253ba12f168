"""Adapters to other people's training loops; each needs its own extra, so none is imported here."""
