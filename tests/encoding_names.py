"""Names of encodings that tests treat alike."""

ENDS = ("learned", "learned-concat", "tupe", "tupe-r")
"""Those with rows for the training length alone, and no position past it."""
CONTENT = ("fox", "cable", "cope", "dape", "path")
"""Those whose scores depend on the tokens' content."""
MIXED = ("rope+window/none", "t5/rope+logn", "fox/rope", "rolling/alibi", "learned-averaged/cable+window")
"""Encodings of two layers."""
ALIKE = ("cable", "kerple-log", "kerple-power", "tupe-r", "rope-linear", "rope-ntk", "rope-llama3", "rope-longrope",
         "learned-hierarchical", "learned-random", "learned-tiled", "learned-long", "learned-shifted",
         "learned-randomized", "learned-skipped", "none", "sinusoidal", "p-rope", "hope")  # fmt: skip
"""Encodings with another of their kind: a model calls both in the same way, and only their formulas differ."""


def is_usual(name: str) -> bool:
    """Whether an encoding, or an encoder's, also runs without --whole where every encoding takes long."""
    return name.split()[-1] not in ALIKE
