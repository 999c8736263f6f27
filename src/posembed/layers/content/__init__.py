"""Encodings whose scores depend on the tokens' content. ``posembed.layers`` offers them."""
