"""Encoders, the inference network and the EMA target."""
