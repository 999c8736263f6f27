"""Names of encodings that tests treat alike."""

ENDS = ("learned", "learned-concat", "tupe", "tupe-r")
"""Those with rows for the training length alone, and no position past it."""
