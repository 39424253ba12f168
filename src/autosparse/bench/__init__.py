"""Every benchmark."""
