"""Exact shrinking: an ordinary smaller model with the same outputs.

Stages: `units.follow` runs the model once and notes which units flow where, `needs` decides which
of them stay and what the others leave behind in biases, `units.surgery` cuts the layers.
"""

from snip.export.shrink.report import LayerChange, ShrinkReport
from snip.export.shrink.shrinking import shrink, shrink_report

__all__ = ["LayerChange", "ShrinkReport", "shrink", "shrink_report"]
