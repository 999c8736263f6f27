"""Encodings that read a position digit by digit. ``posembed.layers`` offers them."""
