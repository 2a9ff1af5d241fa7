"""Exact shrinking: an ordinary smaller model with the same outputs.

Stages: `follow` runs the model once and notes which units flow where, `needs` decides which of
them stay and what the others leave behind in biases, `surgery` cuts the layers.
Each kind of operation (`tracing.kinds`) has a rule, in layers.py if it is cut and in rules.py if
it is not; the table is in follow.py. An operation without a rule keeps whatever flows into it.
"""

from snip.export.shrink.report import LayerChange, ShrinkReport
from snip.export.shrink.shrinking import shrink, shrink_report

__all__ = ["LayerChange", "ShrinkReport", "shrink", "shrink_report"]
