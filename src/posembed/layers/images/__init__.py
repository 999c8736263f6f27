"""Encodings that place the patches of an image in a grid. ``posembed.layers`` offers them."""
