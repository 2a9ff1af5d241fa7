"""The paper's own numbers, as data: test errors, as fractions, with the table they stand in."""

from __future__ import annotations

from typing import NamedTuple

DENSE = "dense"


class PaperNumber(NamedTuple):
    """One number that the paper prints."""

    source: str  # where in the paper
    model: str  # names of snip.models, snip.data and snip.methods; method "dense" is the reference
    dataset: str
    method: str
    sparsity: float
    error: float


def _rows(
    source: str, model: str, dataset: str, *numbers: tuple[str, float, float]
) -> list[PaperNumber]:
    """Numbers of one network from (method, sparsity and error in percent, as they are printed)."""
    return [
        PaperNumber(source, model, dataset, method, round(sparsity / 100, 4), round(error / 100, 6))
        for method, sparsity, error in numbers
    ]


def _pair(
    source: str, model: str, dataset: str, dense: float, sparsity: float, error: float
) -> list[PaperNumber]:
    """The reference of a network and its pruned version, in percent."""
    return _rows(source, model, dataset, (DENSE, 0, dense), ("snip", sparsity, error))


# Of the methods other than SNIP the paper quotes what their own papers say.
TABLE_1 = [
    *_rows(
        "Table 1", "lenet-300-100", "mnist",
        (DENSE, 0, 1.7), ("lwc", 91.7, 1.6), ("dns", 98.2, 2.0), ("lc", 99.0, 3.2),
        ("sws", 95.6, 1.9), ("svd", 98.5, 1.9), ("obd", 92.0, 2.0), ("lobs", 98.5, 2.0),
        ("snip", 95.0, 1.6), ("snip", 98.0, 2.4),
    ),
    *_rows(
        "Table 1", "lenet-5-caffe", "mnist",
        (DENSE, 0, 0.9), ("lwc", 91.7, 0.8), ("dns", 99.1, 0.9), ("lc", 99.0, 1.1),
        ("sws", 99.5, 1.0), ("svd", 99.6, 0.8), ("obd", 92.0, 2.7), ("lobs", 99.0, 2.1),
        ("snip", 98.0, 0.8), ("snip", 99.0, 1.1),
    ),
]  # fmt: skip
TABLE_2 = [
    *_pair("Table 2", "alexnet-s", "cifar-10", 14.12, 90, 14.99),
    *_pair("Table 2", "alexnet-b", "cifar-10", 13.92, 90, 14.50),
    *_pair("Table 2", "vgg-c", "cifar-10", 6.82, 95, 7.27),
    *_pair("Table 2", "vgg-d", "cifar-10", 6.76, 95, 7.09),
    *_pair("Table 2", "vgg-like", "cifar-10", 8.26, 97, 8.00),
    *_pair("Table 2", "wrn-16-8", "cifar-10", 6.21, 95, 6.63),
    *_pair("Table 2", "wrn-16-10", "cifar-10", 5.91, 95, 6.43),
    *_pair("Table 2", "wrn-22-8", "cifar-10", 6.14, 95, 5.85),
    *_pair("Table 2", "lstm-s", "mnist", 1.88, 95, 1.57),
    *_pair("Table 2", "lstm-b", "mnist", 1.15, 95, 1.35),
    *_pair("Table 2", "gru-s", "mnist", 1.87, 95, 2.41),
    *_pair("Table 2", "gru-b", "mnist", 1.71, 95, 1.52),
]
TABLE_C = [
    *_pair("Appendix C", "alexnet-s", "tiny-imagenet", 62.52, 90, 65.27),
    *_pair("Appendix C", "alexnet-b", "tiny-imagenet", 62.76, 90, 65.54),
    *_pair("Appendix C", "vgg-c", "tiny-imagenet", 56.49, 95, 57.48),
    *_pair("Appendix C", "vgg-d", "tiny-imagenet", 56.85, 95, 57.00),
    *_pair("Appendix C", "vgg-like", "tiny-imagenet", 54.86, 95, 55.73),
]
# Table 3: 90% sparse, by the initialiser of the scored weights; Adam, 20 seeds.
TABLE_3_MODELS = ("lenet-300-100", "lenet-5-caffe", "lstm-s", "gru-s")
TABLE_3 = {
    "rn": (0.0190, 0.0089, 0.0293, 0.4761),
    "tn": (0.0196, 0.0087, 0.0303, 0.4648),
    "vs-x": (0.0191, 0.0088, 0.0148, 0.0180),
    "vs-h": (0.0188, 0.0085, 0.0147, 0.0180),
}
# Figure 3: LeNet-300-100, 90% sparse, by the number of images that are scored.
FIGURE_3 = {1: 0.0194, 10: 0.0172, 100: 0.0164, 1_000: 0.0156, 10_000: 0.0140}


def paper_number(model: str, dataset: str, method: str, sparsity: float) -> PaperNumber | None:
    """What the paper reports of this network at this sparsity; None where it says nothing."""
    method = method if sparsity else DENSE
    for row in (*TABLE_1, *TABLE_2, *TABLE_C):
        same = (row.model, row.dataset, row.method) == (model, dataset, method)
        if same and abs(row.sparsity - sparsity) < 5e-4:
            return row
    return None
