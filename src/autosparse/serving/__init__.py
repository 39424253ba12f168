"""Networks prepared for inference on CPUs."""
