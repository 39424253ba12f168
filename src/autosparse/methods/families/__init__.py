"""Base classes that methods share."""
