"""Exact shrinking: an ordinary smaller model with the same outputs.

Stages: `follow` runs the model once and notes which units flow where, `needs` decides which of
them stay, `constants` folds what removed units contribute, `surgery` cuts the layers.
Each kind of operation (`tracing.kinds`) has a rule, in positions.py, shapes.py, layers.py or
recurrent.py; `follow` lists them. An operation without a rule keeps whatever flows into it.
"""

from snip.export.shrink.report import LayerChange, ShrinkReport
from snip.export.shrink.shrinking import shrink, shrink_report

__all__ = ["LayerChange", "ShrinkReport", "shrink", "shrink_report"]
