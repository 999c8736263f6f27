"""Parameters of position tables, and their share of the embeddings and of the model. Each size has its source."""

from __future__ import annotations

from dataclasses import dataclass

BERT = "Devlin et al. 2019, arXiv:1810.04805; config.json of bert-base-uncased and bert-large-uncased"
GPT_2 = "Radford et al. 2019; config.json of gpt2, gpt2-medium and gpt2-large"
ROBERTA = "Liu et al. 2019, arXiv:1907.11692; config.json of roberta-base: two rows are reserved"
OPT = "Zhang et al. 2022, arXiv:2205.01068; config.json of opt-125m: two rows are reserved"
CLIP = "Radford et al. 2021, arXiv:2103.00020; config.json of clip-vit-base-patch32, its text part"
VIT = "Dosovitskiy et al. 2021, arXiv:2010.11929: 14 x 14 patches and a class token"


@dataclass(frozen=True)
class Size:
    """The sizes of a model's embeddings. A table without a model has 0 layers.

    rows: of the position table, reserved rows included. vocabulary: rows of the token table; 0 for images.
    types: rows of the segment table.
    """

    name: str
    rows: int
    width: int
    vocabulary: int = 0
    layers: int = 0
    types: int = 0
    source: str = ""

    @property
    def table(self) -> int:
        """Parameters of the position table."""
        return self.rows * self.width

    @property
    def tokens(self) -> int:
        return self.vocabulary * self.width

    @property
    def share_of_embeddings(self) -> float | None:
        """The share of the position and token tables together; None without a token table."""
        return self.table / (self.table + self.tokens) if self.vocabulary else None

    @property
    def model(self) -> int | None:
        """Parameters of the Transformer: embeddings, layers with biases and an MLP of 4 D, one final norm.

        A layer has 4 D^2 + 4 D in attention, 8 D^2 + 5 D in the MLP, 4 D in its norms. Heads, poolers and patch
        projections do not count. None without layers.
        """
        if not self.layers:
            return None
        of_layers = self.layers * (12 * self.width**2 + 13 * self.width)
        return self.table + self.tokens + self.types * self.width + of_layers + 2 * self.width

    @property
    def share_of_model(self) -> float | None:
        return self.table / self.model if self.model else None


KNOWN = (
    Size("BERT-base", 512, 768, 30_522, 12, 2, BERT),
    Size("BERT-large", 512, 1024, 30_522, 24, 2, BERT),
    Size("RoBERTa-base", 514, 768, 50_265, 12, 1, ROBERTA),
    Size("GPT-2 small", 1024, 768, 50_257, 12, 0, GPT_2),
    Size("GPT-2 medium", 1024, 1024, 50_257, 24, 0, GPT_2),
    Size("GPT-2 large", 1024, 1280, 50_257, 36, 0, GPT_2),
    Size("OPT-125M", 2050, 768, 50_272, 12, 0, OPT),
    Size("CLIP, text", 77, 512, 49_408, 12, 0, CLIP),
    Size("ViT-B/16", 197, 768, 0, 12, 0, VIT),
    Size("2,048 x 768", 2048, 768),
    Size("8,192 x 1,024", 8192, 1024),
    Size("100,000 x 4,096", 100_000, 4096),
    Size("512 x 768, 30,000 tokens", 512, 768, 30_000),
)
