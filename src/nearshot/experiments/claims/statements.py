"""The paper's statements in its order, each with what is compared to judge it."""

from __future__ import annotations

from nearshot.experiments.claims.ablations import gap_closes, recovered, rows
from nearshot.experiments.claims.networks import (
    adapted_and_plain,
    choices,
    classifiers,
    more_epochs,
    nca_and_contrastive,
    on_test,
    projection,
    schedules,
    several_layers,
    treatments,
)
from nearshot.experiments.claims.ranking import EXCEPTIONS_IN_WORDS, exceptions_hold, more_pairs_rank_higher
from nearshot.experiments.claims.setups import (
    all_pairs_and_fewer,
    five_shots_and_one,
    in_figure_and_left_out,
    more_pairs,
    more_pairs_and_fewer,
    nca_and_episodes,
    on_the_curve,
)
from nearshot.experiments.claims.verdict import Claim, above, clearly_above, not_above, same
from nearshot.experiments.recipes.adaptation import LAYERS
from nearshot.experiments.recipes.choices import CHOICES
from nearshot.experiments.recipes.comparison import RECIPE as COMPARISON

__all__ = ["CLAIMS"]

CLAIMS = (
    Claim(
        "more-pairs",
        "w=20, m=15, n=5 gains over 150 % of both kinds of pairs",
        "Section 2.1",
        more_pairs,
        COMPARISON.datasets,
    ),
    Claim(
        "euclidean",
        "The Euclidean distance beats the cosine",
        "Section 2.2",
        above(choices(CHOICES[4], CHOICES[5], "soft")),
    ),
    Claim("treatment", "Centring and normalising features helps", "Section 3.1", above(treatments)),
    Claim(
        "nca-best",
        "NCA is better than every episodic setup, at each batch size",
        "Section 3.2",
        above(nca_and_episodes),
    ),
    Claim(
        "left-out-setups",
        "1-shot training with m+n=16 or 32 is worse than all that Figure 2 shows",
        "Section 3.2",
        above(in_figure_and_left_out),
    ),
    Claim(
        "subsampling",
        "A random fraction of the pairs is worse than all of them",
        "Section 3.3",
        above(all_pairs_and_fewer),
    ),
    Claim("on-the-curve", "PN and MN lie on NCA's subsampling curve", "Section 3.3", on_the_curve),
    Claim(
        "along-the-curve",
        "Along Figure 3, more pairs are better for NCA, PN and MN, exception (i) of Appendix E aside",
        "Section 3.3",
        above(more_pairs_and_fewer),
    ),
    Claim("replacement", "Sampling with replacement makes no difference", "Section 3.4", same(rows((1, 2)))),
    Claim(
        "no-prototypes",
        "Without prototypes (row 6) PN is worse (row 5); the paper says slightly",
        "Section 3.4",
        above(rows((5, 6))),
    ),
    Claim(
        "no-separation",
        "Computing all pairs (row 7) is better than rows 5 and 6",
        "Section 3.4, Appendix E",
        above(rows((7, 5), (7, 6))),
    ),
    Claim("recovered", "All ablations together (row 3) recover what PN lost against NCA", "Section 3.4", recovered),
    Claim(
        "together",
        "All ablations together (row 3) are better than each (rows 6 and 7)",
        "Appendix E",
        above(rows((3, 6), (3, 7))),
    ),
    Claim("gap-closes", "The gap between rows 1 and 3 at batch 128 disappears at 512", "Section 3.4", gap_closes),
    Claim(
        "nca-on-test",
        "NCA beats PN and MN on the test split, our episodes",
        "Section 3.5",
        above(on_test("NCA minus {}", "nca", "{}")),
        COMPARISON.datasets,
    ),
    Claim(
        "our-episodes",
        "The paper's episodes beat Snell's",
        "Section 3.5",
        above(on_test("{}, ours minus Snell's episodes", "{}", "{}-snell")),
        COMPARISON.datasets,
    ),
    Claim("contrastive", "NCA beats the supervised contrastive loss", "Appendix C", above(nca_and_contrastive)),
    Claim("classifiers", "Nearest centroid > soft assignment > k-NN", "Appendix D", above(classifiers)),
    Claim(
        "ranking",
        "In a batch, more pairs are better, exceptions (i) and (ii) aside",
        "Appendix E",
        more_pairs_rank_higher,
    ),
    Claim("ranking-exceptions", f"Fewer pairs, and better: {EXCEPTIONS_IN_WORDS}", "Appendix E", exceptions_hold),
    Claim(
        "dropblock",
        "DropBlock does not meaningfully contribute",
        "Appendix F",
        not_above(choices(CHOICES[3], CHOICES[0])),
    ),
    Claim("epochs", "240 epochs add about 0.5", "Appendix F", more_epochs, ("cifar-fs",)),
    Claim("projection", "A projection helps NCA on miniImageNet only", "Appendix F", projection),
    Claim("five-shots", "Five-shot training beats one-shot training", "Appendix F", above(five_shots_and_one)),
    Claim(
        "schedule",
        "The paper's schedule is considerably better than SimpleShot's, for PN and NCA",
        "Appendix F",
        clearly_above(schedules),
    ),
    Claim(
        "mahalanobis",
        "A Mahalanobis matrix brings no meaningful increase",
        "Appendix G",
        not_above(adapted_and_plain("mahalanobis", ())),
    ),
    Claim(
        "fine-tuning",
        "Fine-tuning on the support set helps",
        "Appendix G",
        above(adapted_and_plain("fine-tuned", (), LAYERS)),
    ),
    Claim("layers", "Features of several layers help", "Appendix G", above(several_layers)),
    Claim(
        "matching",
        "MN too is better without the separation of support and query (row 3 against rows 4 and 6)",
        "Appendix H",
        above(rows((3, 4), (3, 6), classifier="soft")),
    ),
)
