"""Which position encoding to use: needs and evidence in, one recommendation out."""
