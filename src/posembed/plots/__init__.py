"""Figures in one line: position tables, comparisons of encodings, attention, and how a position table works.

    one table                   heatmap, similarity, similarity_by_distance, norms, neighbours
    its directions              spectrum, fourier, directions
    several tables              compare, before_after, during_training
    models and comparisons      attention_by_distance, lengths
    how it works                idea

A table is a tensor or an array (N, D), a layer with a learned table, or the path or hub name of a checkpoint. Every
function draws on ``ax``, or in a new figure, and returns the Axes; ``ax.figure.savefig("table.png")`` saves the figure.

``__init__.pyi`` lists the functions and their files. Each function is imported on first use, so that
``import posembed.plots`` does not load matplotlib.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
