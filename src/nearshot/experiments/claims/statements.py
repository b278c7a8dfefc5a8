"""The paper's statements in its order: what it says and where, what is compared, and within which limits."""

from __future__ import annotations

from nearshot.experiments.claims import comparisons as of
from nearshot.experiments.claims.verdict import (
    ABOVE,
    CLEARLY_ABOVE,
    NONE,
    Claim,
    Limits,
    Verdict,
    above,
    count_statuses,
    not_above,
    within,
)
from nearshot.experiments.paired import SAME
from nearshot.experiments.recipe import Found
from nearshot.experiments.tables import Row, Table

__all__ = ["CLAIMS", "check_claims", "claims_as_table"]

ALL = ("cifar-fs", "mini-imagenet", "tiered-imagenet")


def _projection(found: Found, dataset: str) -> Verdict:
    compared = of.choices(1, 0)
    return (above(compared) if dataset == "mini-imagenet" else not_above(compared))(found, dataset)


CLAIMS = (
    Claim("more-pairs", "w=20, m=15, n=5 gains over 150 % of both kinds of pairs", "Section 2.1", of.more_pairs, ALL),
    Claim("euclidean", "The Euclidean distance beats the cosine", "Section 2.2", above(of.choices(4, 5, "soft"))),
    Claim("treatment", "Centring and normalising features helps", "Section 3.1", above(of.treatments)),
    Claim(
        "nca-best",
        "NCA is better than every episodic setup, at each batch size",
        "Section 3.2",
        above(of.nca_and_episodes),
    ),
    Claim(
        "left-out-setups",
        "1-shot training with m+n=16 or 32 is worse than all that Figure 2 shows",
        "Section 3.2",
        above(of.figure_2_and_the_rest),
    ),
    Claim(
        "subsampling",
        "A random fraction of the pairs is worse than all of them",
        "Section 3.3",
        above(of.all_pairs_and_fewer),
    ),
    Claim("on-the-curve", "PN and MN lie on NCA's subsampling curve", "Section 3.3", of.on_the_curve),
    Claim(
        "along-the-curve",
        "Along Figure 3, more pairs are better for NCA, PN and MN, exception (i) of Appendix E aside",
        "Section 3.3",
        above(of.more_pairs_and_fewer),
    ),
    Claim(
        "replacement", "Sampling with replacement makes no difference", "Section 3.4", within((of.rows((1, 2)), NONE))
    ),
    Claim(
        "no-prototypes",
        "Without prototypes (row 6) PN is worse (row 5); the paper says slightly",
        "Section 3.4",
        above(of.rows((5, 6))),
    ),
    Claim(
        "no-separation",
        "Computing all pairs (row 7) is better than rows 5 and 6",
        "Section 3.4, Appendix E",
        above(of.rows((7, 5), (7, 6))),
    ),
    Claim(
        "recovered",
        "All ablations together (row 3) recover what PN lost against NCA",
        "Section 3.4",
        within((of.rows((3, 5)), ABOVE), (of.rows((3, 1)), Limits(low=-SAME))),
    ),
    Claim(
        "together",
        "All ablations together (row 3) are better than each (rows 6 and 7)",
        "Appendix E",
        above(of.rows((3, 6), (3, 7))),
    ),
    Claim(
        "gap-closes",
        "The gap between rows 1 and 3 at batch 128 disappears at 512",
        "Section 3.4",
        within((of.rows((3, 1), batch_sizes=(128,)), ABOVE), (of.rows((3, 1), batch_sizes=(512,)), NONE)),
    ),
    Claim(
        "nca-on-test",
        "NCA beats PN and MN on the test split, our episodes",
        "Section 3.5",
        above(of.on_test("NCA minus {}", "nca", "{}")),
        ALL,
    ),
    Claim(
        "our-episodes",
        "The paper's episodes beat Snell's",
        "Section 3.5",
        above(of.on_test("{}, ours minus Snell's episodes", "{}", "{}-snell")),
        ALL,
    ),
    Claim("contrastive", "NCA beats the supervised contrastive loss", "Appendix C", above(of.nca_and_contrastive)),
    Claim("classifiers", "Nearest centroid > soft assignment > k-NN", "Appendix D", above(of.classifiers)),
    Claim(
        "ranking",
        "In a batch, more pairs are better, exceptions (i) and (ii) aside",
        "Appendix E",
        of.more_pairs_rank_higher,
    ),
    Claim(
        "ranking-exceptions", f"Fewer pairs, and better: {of.EXCEPTIONS_IN_WORDS}", "Appendix E", above(of.exceptions)
    ),
    Claim("dropblock", "DropBlock does not meaningfully contribute", "Appendix F", not_above(of.choices(3, 0))),
    # The paper has about half a point, so more than none and less than one.
    Claim(
        "epochs", "240 epochs add about 0.5", "Appendix F", within((of.choices(2, 0), Limits(0.0, SAME))), ("cifar-fs",)
    ),
    Claim("projection", "A projection helps NCA on miniImageNet only", "Appendix F", _projection),
    Claim("five-shots", "Five-shot training beats one-shot training", "Appendix F", above(of.five_shots_and_one)),
    Claim(
        "schedule",
        "The paper's schedule is considerably better than SimpleShot's, for PN and NCA",
        "Appendix F",
        within((of.schedules, CLEARLY_ABOVE)),
    ),
    Claim(
        "mahalanobis",
        "A Mahalanobis matrix brings no meaningful increase",
        "Appendix G",
        not_above(of.adapted_and_plain("mahalanobis", "last layer")),
    ),
    Claim(
        "fine-tuning",
        "Fine-tuning on the support set helps",
        "Appendix G",
        above(of.adapted_and_plain("fine-tuned", "last layer", "several layers")),
    ),
    Claim("layers", "Features of several layers help", "Appendix G", above(of.several_layers)),
    Claim(
        "matching",
        "MN too is better without the separation of support and query (row 3 against rows 4 and 6)",
        "Appendix H",
        above(of.rows((3, 4), (3, 6), classifier="soft")),
    ),
)
ABOUT_CLASSIFIERS = (
    "Both sides of a comparison use the same classifier, except where classifiers are compared: nearest centroid, "
    "unless the comparison names another. Soft is soft assignment, which Matching Networks are reported with."
)


def check_claims(found: Found, dataset: str) -> list[tuple[Claim, Verdict]]:
    """Return the verdict on each statement that is judged on a dataset; those not yet run last."""
    checked = [(claim, claim.check(found, dataset)) for claim in CLAIMS if dataset in claim.datasets]
    return sorted(checked, key=lambda one: one[1].status == "not yet run")


def claims_as_table(found: Found, dataset: str) -> Table:
    """Return the statements with their verdicts and the numbers behind them."""
    checked = check_claims(found, dataset)
    rows: list[Row] = [
        (claim.statement, claim.where, verdict.status, verdict.text or "–") for claim, verdict in checked
    ]
    return Table(
        f"claims-{found.on(dataset)}",
        f"What the paper says, and what was found: {found.on(dataset)}",
        found.label,
        ("claim", "where", "verdict", "because"),
        tuple(rows),
        (count_statuses(verdict.status for _, verdict in checked) + ".", ABOUT_CLASSIFIERS),
    )
