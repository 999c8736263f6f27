"""Train a text classifier in plain PyTorch with a learned position table, and look at what the table learned.

Is a piece of code written forwards or backwards? Both directions have the same letters, so a model without positions
cannot tell. The code is that of Python's standard library:

    python examples/classifier.py

It writes a picture of the table before and after training to the folder for temporary files, and prints its path.
"""

import os
import tempfile
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posembed import LearnedPositionalEmbedding, plots
from posembed.layers import NoPosition
from posembed.tables import TableMonitor

LENGTH, WIDTH = 32, 64
sources = [path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))]
letters = torch.tensor(list(b"".join(sources)))
training, held_out = letters[:-200_000], letters[-200_000:]


class Classifier(nn.Module):
    def __init__(self, positions: nn.Module) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, WIDTH)
        nn.init.normal_(self.letters.weight, std=0.02)  # the scale of the position rows
        self.positions = positions
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.answer = nn.Linear(WIDTH, 2)

    def forward(self, text: Tensor) -> Tensor:  # (B, L) -> (B, 2)
        x = self.positions(self.letters(text))  # the only line that knows about order
        return self.answer(self.encoder(x).mean(dim=1))


def batch(text: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Pieces of the text in both directions, (2 size, L), and their directions, (2 size,)."""
    pieces = text[torch.randint(len(text) - LENGTH, (size, 1)) + torch.arange(LENGTH)]
    return torch.cat((pieces, pieces.flip(1))), torch.arange(2).repeat_interleave(size)


def accuracy(positions: nn.Module) -> float:
    """Trains a classifier with these positions; the share of held-out pieces that it then gets right."""
    torch.manual_seed(0)
    model = Classifier(positions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(500):
        pieces, directions = batch(training, 32)
        loss = cross_entropy(model(pieces), directions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pieces, directions = batch(held_out, 1000)
    return (model.eval()(pieces).argmax(dim=1) == directions).float().mean().item()


torch.manual_seed(0)
table = LearnedPositionalEmbedding(max_len=LENGTH, dim=WIDTH)
monitor = TableMonitor(table)
rows, before = table.weight.detach().clone(), monitor.state()
print(f"accuracy with a learned table: {accuracy(table):.1%}")
print(f"accuracy without positions:    {accuracy(NoPosition()):.1%}")

after = monitor.state()
for number in ("norm_mean", "neighbour_cosine", "effective_rank"):
    print(f"{number:16} {before[number]:5.2f} before training, {after[number]:5.2f} after")

figure, axes = plt.subplots(1, 2, figsize=(8, 4.2), layout="constrained")
plots.similarity(rows, ax=axes[0], colorbar=False, title="before training")
plots.similarity(table, ax=axes[1], colorbar=False, title="after training")
picture = Path(tempfile.gettempdir()) / "positions.png"
figure.savefig(picture, dpi=100)
print(f"picture: {picture}")
