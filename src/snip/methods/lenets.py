"""What methods with settings per layer use for the two LeNets, and for any other network.

From the papers and their authors' code; the sources are named in each column.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from snip.models.networks import LeNet5Caffe, LeNet300100
from snip.network.norms import layer_name


class Layer(NamedTuple):
    """The settings of one layer. The defaults treat all layers of a network alike."""

    # LWC: the threshold in standard deviations of the weights. Han et al. publish the densities
    # (8, 9, 26% and 66, 12, 8, 19%); these are the thresholds that leave them of Gaussian weights.
    quality: float = 1.0
    # DNS: c_rate, the threshold in deviations of |w| above its mean. Estimated from the weights
    # that Guo et al. released; their forks use 3.7, 2.8, 2.8 and about 2, 3, 3.8, 2.6.
    c_rate: float = 0.0
    # L-OBS: the fraction kept, to be scaled. The layer ratios in the authors' development branch
    # (5, 20, 70% and 60, 60, 5, 30%). None: in proportion to (inputs + outputs) / weights, as ERK.
    kept: float | None = None


LAYERS: dict[type[nn.Module], dict[str, Layer]] = {
    LeNet300100: {
        "fc1": Layer(quality=1.75, c_rate=3.7, kept=0.05),
        "fc2": Layer(quality=1.70, c_rate=2.8, kept=0.20),
        "fc3": Layer(quality=1.13, c_rate=2.8, kept=0.70),
    },
    LeNet5Caffe: {
        "conv1": Layer(quality=0.44, c_rate=2.0, kept=0.60),
        "conv2": Layer(quality=1.56, c_rate=3.0, kept=0.60),
        "fc1": Layer(quality=1.75, c_rate=3.8, kept=0.05),
        "fc2": Layer(quality=1.31, c_rate=2.6, kept=0.30),
    },
}


def settings_of(model: nn.Module, parameter: str) -> Layer:
    """The settings of the layer that a parameter belongs to."""
    return LAYERS.get(type(model), {}).get(layer_name(parameter), Layer())
