"""Every position encoding, behind one interface, ``PositionEncoding``.

    rows added to the input     LearnedPositionalEmbedding, LearnedGridEmbedding, ExtendedPositionalEmbedding,
                                SampledPositionalEmbedding, ConcatenatedPositionalEmbedding,
                                SinusoidalPositionalEmbedding, SinusoidalGridEmbedding,
                                SequentialPositionalEmbedding; BilevelEncoding, which also acts in attention
    rows for queries and keys   RollingPositionalEmbedding
    rotated queries and keys    RotaryEmbedding, AxialRotaryEmbedding, MixedRotaryEmbedding, PolarEmbedding;
                                LinearScaling, NTKScaling, YarnScaling, LongRopeScaling, Llama3Scaling
    biases on the scores        Alibi, T5Bias, KerpleLog, KerplePower, Fire, Tupe, LookHere,
                                AveragedPositionalEmbedding
    scores from content         Fox, Cable, Cope, Dape, HouseholderPath
    nothing                     NoPosition

``__init__.pyi`` lists the classes and their files. Each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
