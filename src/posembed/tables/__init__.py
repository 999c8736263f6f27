"""Tables as data: what their rows are, how they are resized, what they learned, and what is wrong with them.

    layout              TableLayout, Axis, PADDING
    another size        resize_table, leading_rows_kept
    initial values      sinusoidal_table
    faults              check_table, check_scale, Finding
    what was learned    compare_tables, linear_shift, TableMonitor

``__init__.pyi`` lists the names and their files. Each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
