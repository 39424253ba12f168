"""Regions and linear layers in eight bits: calibrated, quantized, and computed by the eight-bit kernels."""
