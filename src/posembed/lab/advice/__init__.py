"""Recommends a position encoding, given needs and evidence."""
