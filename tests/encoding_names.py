"""Names of encodings that tests treat alike."""

ENDS = ("learned", "learned-concat", "tupe", "tupe-r")
"""Those with rows for the training length alone, and no position past it."""
CONTENT = ("fox", "cable", "cope", "dape", "path")
"""Those whose scores depend on the tokens' content."""
MIXED = ("rope+window/none", "t5/rope+logn", "fox/rope", "rolling/alibi", "learned-averaged/cable+window")
"""Encodings of two layers."""
UNMEASURED = (*CONTENT, "p-rope", "hope", "bipe-rope", "bipe-alibi", "seqpe")
"""Those that the published study of every encoding has not measured yet."""
