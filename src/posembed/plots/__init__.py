"""Figures in one line: position tables, comparisons of encodings, attention, and the idea itself.

    one table                   heatmap, similarity, similarity_by_distance, norms, neighbours
    its directions              spectrum, fourier, directions
    several tables              compare, before_after, during_training
    models and comparisons      attention_by_distance, lengths
    how it works                idea

A table is a tensor or an array (N, D), a layer with a learned table, or the path or hub name of a checkpoint. Every
function draws on ``ax``, or in a new figure, and returns the Axes; ``ax.figure.savefig("table.png")`` saves the figure.
"""

from posembed.plots.attention import attention_by_distance as attention_by_distance
from posembed.plots.by_length import lengths as lengths
from posembed.plots.how_it_works import idea as idea
from posembed.plots.several import before_after as before_after
from posembed.plots.several import compare as compare
from posembed.plots.several import during_training as during_training
from posembed.plots.spectra import directions as directions
from posembed.plots.spectra import fourier as fourier
from posembed.plots.spectra import spectrum as spectrum
from posembed.plots.tables import heatmap as heatmap
from posembed.plots.tables import neighbours as neighbours
from posembed.plots.tables import norms as norms
from posembed.plots.tables import similarity as similarity
from posembed.plots.tables import similarity_by_distance as similarity_by_distance
