"""The paper's claims, each with the rule that decides it and where its numbers come from."""

from __future__ import annotations

from snip.common.text import short_percent
from snip.experiments.claims import batches, errors, labels, maps
from snip.experiments.claims.facts import Claim, Fact, verdict
from snip.experiments.records.comparison import LEAST_SEEDS, MARGIN, MARGIN_SHARE

__all__ = ["CLAIMS", "Claim", "Fact", "verdict"]

ABOUT_EQUAL = (
    f"{MARGIN:g} points (or {short_percent(MARGIN_SHARE)} of the error it is compared with, where "
    "that is more)"
)
CLAIMS = (
    Claim(
        "One shot before training keeps the accuracy up to extreme sparsity",
        f"from {short_percent(errors.EXTREME)} on, the pruned network's error is above the dense "
        "one's by at most what it rises in the paper (nothing, where it falls or has no number) "
        f"and {ABOUT_EQUAL}; no seed diverges, or has learnt less than half of what every dense "
        f"one has (by guessing nothing is learnt); there are at least {LEAST_SEEDS} seeds. Where "
        "our dense network is better than the paper's, this asks for more than to agree with its "
        "numbers",
        ("table1", "fig1"),
        errors.one_shot,
    ),
    Claim(
        "It is on a par with methods that prune a trained network",
        "at the sparsity of SNIP's that is nearest, its error is above the rival's by at most what "
        f"it is above in the paper and {ABOUT_EQUAL}; of at least {LEAST_SEEDS} seeds. "
        "A rival that is higher here than its own number decides nothing",
        ("table1",),
        errors.on_par,
    ),
    Claim(
        "It works on any architecture",
        f"the same rule: at most the paper's rise and {ABOUT_EQUAL}, and no seed diverges or "
        "learns less than half",
        ("table2", "tableC"),
        errors.architectures,
    ),
    Claim(
        "Some pruned networks are better than the dense ones",
        "where the paper's pruned network has the lower error, ours is below the dense one's by "
        "more than chance explains; one such network bears the claim out, and only if all are "
        "above by as much does it fail",
        ("table1", "fig1", "table2", "tableC"),
        errors.improvements,
        some=True,
    ),
    Claim(
        "What survives shows the class",
        f"the class is read back from at least {short_percent(maps.ENOUGH)} of the maps of SNIP at "
        "the highest sparsity, as the class of which the distance of the mean image from the mean "
        "pixel, which is what the network sees, correlates best with the map; by chance from 10%. "
        "The mean image itself is another measure, by which fewer are read back. Inverted images "
        "are told beside it, and are no evidence of their own: see the claim on them",
        ("fig2", "figA1"),
        maps.read_back,
    ),
    Claim(
        "What survives is the discriminative part of the image",
        "none, because of maps that are scored on one class alone nothing else can come out: "
        "before training all outputs are drawn alike, so that it makes no difference which of them "
        "the images are said to belong to, and the other classes are not in the batch. The control "
        "scores the same images with all labels wrong. Such maps show where the images differ from "
        "the mean pixel, and cannot show what tells their class from others",
        ("fig2", "figA1"),
        maps.discriminative,
        forced="cannot be shown by such maps",
    ),
    Claim(
        "What survives is the same on inverted images",
        "none, because nothing else can come out: standardised, an inverted image is the plain one "
        "with its sign turned, weights of the first layer are as likely as their negatives, and "
        "biases are zero. So a network on inverted images is as likely as one on plain images that "
        "computes the same, whatever is pruned by. What is compared: plain and inverted maps of a "
        "class with its maps of two seeds (other weights, other images)",
        ("figA1",),
        maps.inversion,
        forced="must hold, whatever survives",
    ),
    Claim(
        "Without the weight, by dL/dw, other connections survive, and less consistently",
        "two comparisons for each data set: maps of dL/dw are less like SNIP's than SNIP's of two "
        "seeds are like each other; they change more over the sparsity than SNIP's, by more than "
        "chance explains. What inversion changes is told, and could not be other than it is",
        ("figA2", "fig2"),
        maps.by_gradient,
    ),
    Claim(
        "Larger scoring batches help",
        f"seed by seed, the error of the largest batch is below that of a smaller one (1 and "
        f"{batches.USUAL} images in figure 3, {batches.USUAL} in the ablations), by more than "
        f"chance explains, of at least {LEAST_SEEDS} seeds. Of so many comparisons one in twenty "
        "would say yes or no by chance alone: they are not corrected for that",
        ("fig3", "gap", "gap-conv"),
        batches.larger_helps,
    ),
    Claim(
        "The larger the scoring batch, the nearer is what survives to the mean image",
        "seed by seed, the map of what survives correlates better with the mean training image "
        "than that of the next smaller batch, by more than chance explains",
        ("fig3",),
        batches.near_the_mean,
    ),
    Claim(
        "Pruned networks do not memorise random labels",
        f"the dense network's training error on random labels ends below "
        f"{short_percent(labels.HALF)}, with L2 too, and the pruned one's above, while on true "
        f"labels the pruned one's ends below {short_percent(labels.FITTED)}",
        ("fig4",),
        labels.memorised,
    ),
    Claim(
        "The sparser a network, the less it fits random labels",
        "between no two neighbouring sparsities the training loss at the end falls by more than "
        f"{labels.SAME:g} (that of guessing is 2.30), and from the reference to the sparsest it "
        "rises by more",
        ("figB",),
        labels.by_sparsity,
    ),
    Claim(
        "Initialisation must scale the variance",
        "on the recurrent networks, seeds of RN and TN draws err more often than seeds of VS-X, "
        "by more than chance explains (Mann and Whitney's test, which asks for at least three and "
        "five seeds, or four of both, and does not mind that some runs learn nothing at all)",
        ("table3",),
        errors.variance,
    ),
    Claim(
        "On the LeNets the initialiser makes little difference",
        "the mean errors of RN and TN draws are as far from that of VS-X as in the paper at most, "
        f"above or below, and {ABOUT_EQUAL}",
        ("table3",),
        errors.marginal,
    ),
    Claim(
        "VS-H is the best initialiser",
        "on each network, yes if the mean error of VS-H is below all others', no if another's is "
        "below it, by more than chance explains; else it is too close to tell, as it is "
        "between VS-H and VS-X in the paper's own numbers on all four networks",
        ("table3",),
        errors.best_initialiser,
    ),
)
