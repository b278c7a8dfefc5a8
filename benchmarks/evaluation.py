"""10,000 episodes against a loop over episodes in NumPy, and against scikit-learn in a loop.

The loop does what the published evaluation does, one episode at a time: sample vectors of each
class from a Python list, stack them, centre and normalise them, subtract support from query by
broadcasting, take norms (nearest centroid) or sum exponentials (soft assignment), and choose. To
compare answers, it gets nearshot's episodes instead.

The lower bound is the time to gather the features of every episode, 2.6 GB in all.

    python benchmarks/evaluation.py      # four minutes

Prints a table and writes benchmarks/results/evaluation.json and .md.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from torch import Tensor

from memory import peak_mib_in_new_process, peak_mib_since_reset, reset_peak
from nearshot.evaluation import (
    CLASSIFIERS,
    Episodes,
    EvaluationSpec,
    evaluate_episodes,
    evaluate_features,
    evaluate_fine_tuned,
    evaluate_mahalanobis,
    evaluate_many,
    prepare_features,
    sample_episodes,
)

# The size of CIFAR-FS's and miniImageNet's test splits
N_CLASSES = 20
IMAGES_PER_CLASS = 600
DIM = 640
N_EPISODES = 10_000
# The time is proportional to their number; scaled in the table.
N_EPISODES_SKLEARN = 1_000
RESULTS = Path(__file__).parent / "results" / "evaluation.json"
Array = npt.NDArray[Any]


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Return features that are neither trivial nor hopeless, their labels, and a centre."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N_CLASSES).repeat_interleave(IMAGES_PER_CLASS)
    means = torch.randn(N_CLASSES, DIM, generator=generator)
    features = 0.15 * means[labels] + torch.randn(len(labels), DIM, generator=generator) + 1
    return features.relu(), labels, features.relu().mean(0)


def centroid_answers(support: Array, query: Array) -> Array:
    """Nearest centroid by broadcasting; support (way, shot, dim), query (query, dim)."""
    differences = support.mean(1)[:, None] - query  # (way, query, dim)
    return np.asarray(np.linalg.norm(differences, 2, axis=-1).argmin(0))


def soft_answers(support: Array, query: Array) -> Array:
    """Soft assignment by broadcasting."""
    n_way, n_shot, dim = support.shape
    differences = support.reshape(-1, dim)[:, None] - query  # (way · shot, query, dim)
    exponentials = np.exp(-1 * np.sum(differences**2, axis=2))
    likelihoods = exponentials / exponentials.sum(0)[None]
    return np.asarray(likelihoods.reshape(n_way, n_shot, len(query)).sum(1).argmax(0))


def sklearn_answers(make: Callable[[], Any]) -> Callable[[Array, Array], Array]:
    def answers(support: Array, query: Array) -> Array:
        n_way, n_shot, dim = support.shape
        model = make().fit(support.reshape(-1, dim), np.repeat(np.arange(n_way), n_shot))
        answers: Array = model.predict(query)
        return answers

    return answers


def loop(
    draw: Callable[[int], tuple[list[Array], list[Array]]],
    n_episodes: int,
    centre: Array,
    answer: Callable[[Array, Array], Array],
    dtype: npt.DTypeLike = np.float32,
) -> tuple[Array, float]:
    """Return the answers of the loop, (episode, query), and its seconds per 10,000 episodes."""
    answers = []
    start = time.perf_counter()
    for episode in range(n_episodes):
        support_vectors, query_vectors = draw(episode)
        support = np.array(support_vectors).astype(dtype)
        query = np.array(query_vectors).astype(dtype)
        support = support - centre
        query = query - centre
        support = support / np.linalg.norm(support, 2, 1)[:, None]
        query = query / np.linalg.norm(query, 2, 1)[:, None]
        answers.append(answer(support.reshape(5, 5, DIM), query))
    seconds = time.perf_counter() - start
    return np.stack(answers), seconds * N_EPISODES / n_episodes


def random_draws(
    features: Tensor, labels: Tensor
) -> Callable[[int], tuple[list[Array], list[Array]]]:
    """Draw as the published evaluation does: random.sample from a list of vectors per class."""
    vectors = {k: [row.numpy() for row in features[labels == k]] for k in range(N_CLASSES)}
    generator = random.Random(0)

    def draw(_: int) -> tuple[list[Array], list[Array]]:
        support = []
        query = []
        for k in generator.sample(list(vectors), 5):
            chosen = generator.sample(vectors[k], 20)
            support += chosen[:5]
            query += chosen[5:]
        return support, query

    return draw


def given_draws(
    features: Tensor, episodes: Episodes
) -> Callable[[int], tuple[list[Array], list[Array]]]:
    """Take the given episodes, so that the answers can be compared."""
    vectors = [row.numpy() for row in features]
    support = episodes.support.flatten(1).tolist()
    query = episodes.query.flatten(1).tolist()
    return lambda episode: (
        [vectors[i] for i in support[episode]],
        [vectors[i] for i in query[episode]],
    )


def fastest(work: Callable[[], Any], repeats: int = 5) -> tuple[Any, float]:
    best = float("inf")
    result = None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def gather_floor(features: Tensor, episodes: Episodes) -> float:
    """Return the seconds to read all episodes' features, in pieces that fit the cache."""
    rows = episodes.images.flatten()
    buffer = torch.empty(3200, DIM)

    def read() -> None:
        for piece in rows.split(3200):
            torch.index_select(features, 0, piece, out=buffer[: len(piece)])

    return fastest(read)[1]


def differences(
    features: Tensor,
    centre: Tensor,
    labels: Tensor,
    episodes: Episodes,
    name: Any,
    answer: Callable[[Array, Array], Array],
) -> dict[str, int]:
    """Ask nearshot and the loop the same questions, and count the answers that differ.

    nearshot gets the float32 features, and so does the loop, which is run in float32 and in
    float64: where two classes are equally near to seven digits, rounding decides in a float32 loop,
    so it differs from itself in float64. `evaluate_features` gives how many answers are right in
    each episode, and the classifiers the answers themselves. For k-NN, scikit-learn gives a tie of
    votes to the lowest label rather than to the nearest neighbour; tied questions are left out, and
    numbers of right answers are not compared.
    """
    draw = given_draws(features, episodes)
    exact, _ = loop(draw, len(episodes), centre.double().numpy(), answer, np.float64)
    rounded, _ = loop(draw, len(episodes), centre.numpy(), answer)
    prepared = prepare_features(features.double(), centre=centre.double())
    n_different = 0
    for start in range(0, len(episodes), 100):
        part = Episodes(episodes.images[start : start + 100], 15)
        scores = CLASSIFIERS[name](prepared[part.support], prepared[part.query].flatten(1, 2))
        different = scores.argmax(2) != torch.from_numpy(exact[start : start + 100])
        if name == "knn":
            votes = scores.floor()
            different &= (votes == votes.amax(2, keepdim=True)).sum(2) == 1
        n_different += int(different.sum())
    counted = {
        "answers": exact.size,
        "different_answers": n_different,
        "answers_that_differ_between_float32_and_float64_loop": int((exact != rounded).sum()),
    }
    if name != "knn":
        accuracies = evaluate_episodes(
            features, labels, centre=centre, classifier=name, episodes=episodes
        ).per_episode
        right = (exact == np.repeat(np.arange(5), 15)).sum(1)
        counted["different_episodes"] = int((np.rint(accuracies.numpy() * 0.75) != right).sum())
    return counted


def adaptation() -> dict[str, float]:
    """Return the seconds per episode of fine-tuning conv4 and of learning a Mahalanobis matrix."""
    from nearshot.losses import nca_loss
    from nearshot.models import build_backbone

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(25)
    images = torch.randn(len(labels), 3, 28, 28, generator=generator)
    network = build_backbone("conv4", input_size=28).eval()
    tuned = partial(
        evaluate_fine_tuned, network, images, labels, loss=nca_loss, n_episodes=20, progress=False
    )
    features = torch.randn(len(labels), 64, generator=generator)
    metric = partial(
        evaluate_mahalanobis, features, labels, loss=nca_loss, n_episodes=64, progress=False
    )
    return {
        "fine_tuning_conv4_s": fastest(tuned, 2)[1] / 20,
        "mahalanobis_64_s": fastest(metric, 2)[1] / 64,
    }


def all_three(n_episodes: int = N_EPISODES) -> list[EvaluationSpec]:
    """Return the evaluations with the paper's three classifiers, which share one pass."""
    return [
        EvaluationSpec(classifier=classifier, n_episodes=n_episodes)
        for classifier in ("centroid", "soft", "knn")
    ]


def on_cuda(features: Tensor, labels: Tensor, centre: Tensor) -> None:
    """Time the same calls on a GPU, compare with the CPU, and write evaluation-cuda.json."""
    on_gpu = features.cuda(), labels, centre.cuda()
    seconds = {}
    equal = {}
    for name in CLASSIFIERS:
        on_cpu = evaluate_features(features, labels, centre=centre, classifier=name)
        work = partial(evaluate_features, on_gpu[0], on_gpu[1], centre=on_gpu[2], classifier=name)
        accuracy, seconds[str(name)] = fastest(work)
        equal[str(name)] = bool((accuracy.per_episode.cpu() == on_cpu.per_episode.cpu()).all())
    _, together = fastest(
        partial(evaluate_many, on_gpu[0], on_gpu[1], centre=on_gpu[2], specs=all_three())
    )
    report = {
        "what": f"{len(labels):,} × {DIM} features, {N_EPISODES:,} episodes of 5-way 5-shot "
        "15-query; fastest of 5",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "seconds": seconds,
        "all_three_s": together,
        "every_episode_as_on_the_cpu": equal,
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20,
    }
    path = RESULTS.with_name("evaluation-cuda.json")
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written to {path}.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--memory", nargs=1, metavar="EPISODES", help="print the peak memory of one pass and stop"
    )
    options = parser.parse_args()
    features, labels, centre = data()
    if options.memory:
        evaluate_many(features, labels, centre=centre, specs=all_three(n_episodes=10))
        before = reset_peak()
        specs = all_three(n_episodes=int(options.memory[0]))
        evaluate_many(features, labels, centre=centre, specs=specs)
        print(peak_mib_since_reset() - before)
        return

    episodes = sample_episodes(labels, n_episodes=N_EPISODES)
    prepared = prepare_features(features, centre=centre)
    floor = gather_floor(prepared, episodes)
    peers: dict[str, tuple[str, Callable[[Array, Array], Array], int]] = {
        "centroid": ("loop", centroid_answers, N_EPISODES),
        "soft": ("loop", soft_answers, N_EPISODES),
        "centroid ": (
            "scikit-learn NearestCentroid",
            sklearn_answers(NearestCentroid),
            N_EPISODES_SKLEARN,
        ),
        "knn": (
            "scikit-learn KNeighborsClassifier",
            sklearn_answers(lambda: KNeighborsClassifier(n_neighbors=5)),
            N_EPISODES_SKLEARN,
        ),
    }
    rows = []
    draw = random_draws(features, labels)
    for key, (peer, answer, n_episodes) in peers.items():
        name: Any = key.strip()
        accuracy, nearshot_seconds = fastest(
            partial(evaluate_features, features, labels, centre=centre, classifier=name)
        )
        _, peer_seconds = loop(draw, n_episodes, centre.numpy(), answer)
        rows.append(
            {
                "classifier": name,
                "peer": peer,
                "nearshot_s": nearshot_seconds,
                "peer_s": peer_seconds,
                "times_faster": peer_seconds / nearshot_seconds,
                "times_the_floor": nearshot_seconds / floor,
                "accuracy": str(accuracy),
                **differences(
                    features,
                    centre,
                    labels,
                    Episodes(episodes.images[:n_episodes], 15),
                    name,
                    answer,
                ),
            }
        )
    singles = {row["classifier"]: row["nearshot_s"] for row in rows}
    _, together = fastest(
        partial(evaluate_many, features, labels, centre=centre, specs=all_three())
    )
    evaluate = partial(evaluate_features, features, labels, centre=centre)
    growth = {n: fastest(partial(evaluate, n_episodes=n), 3)[1] for n in (1_000, 10_000, 100_000)}
    report = {
        "what": f"{len(labels):,} × {DIM} features, {N_EPISODES:,} episodes of 5-way 5-shot "
        "15-query; fastest of 5",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "floor_s": floor,
        "rows": rows,
        "all_three_s": together,
        "all_three_over_mean_of_one": together / (sum(singles.values()) / len(singles)),
        "all_three_over_each": {name: together / seconds for name, seconds in singles.items()},
        "extra_memory_mib": {
            n: peak_mib_in_new_process(__file__, str(n)) for n in (N_EPISODES, 20 * N_EPISODES)
        },
        "seconds_by_episodes": growth,
        "adaptation_per_episode": adaptation(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(report))
    print(markdown(report), f"Written to {RESULTS}.", sep="\n")
    if torch.cuda.is_available():
        on_cuda(features, labels, centre)


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    lines = [
        f"Evaluation against loops over episodes: {report['what']}; torch {report['torch']}, "
        f"{report['threads']} "
        f"threads. Reading the episodes' features alone, the floor, takes {report['floor_s']:.2f} "
        "s.",
        "",
        "| classifier | nearshot | peer | | times faster | time / floor | other answers | other "
        "episodes |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['classifier']} | {row['nearshot_s']:.2f} s | {row['peer']} | {row['peer_s']:.1f} "
        "s | "
        f"{row['times_faster']:.1f} | {row['times_the_floor']:.1f} | "
        f"{row['different_answers']} of {row['answers']:,} | {row.get('different_episodes', '–')} |"
        for row in report["rows"]
    ]
    each = ", ".join(
        f"{ratio:.1f} × {name}" for name, ratio in report["all_three_over_each"].items()
    )
    memory = ", ".join(
        f"{mib:.0f} MiB for {int(n):,}" for n, mib in report["extra_memory_mib"].items()
    )
    growth = ", ".join(
        f"{seconds:.2f} s for {int(n):,}" for n, seconds in report["seconds_by_episodes"].items()
    )
    own = "answers_that_differ_between_float32_and_float64_loop"
    rounded = ", ".join(
        f"{row[own]} ({row['classifier']})" for row in report["rows"] if row["peer"] == "loop"
    )
    adapted = report["adaptation_per_episode"]
    lines += [
        "",
        f"All three classifiers in one pass: {report['all_three_s']:.2f} s, "
        f"{report['all_three_over_mean_of_one']:.2f} times the mean of one ({each}). Extra "
        f"memory: {memory} episodes. "
        f"Nearest centroid: {growth} episodes.",
        "",
        "Other answers are those of the classifiers against the loop's, on the same episodes and "
        "in float64. Other "
        "episodes are those in which `evaluate_features`, on float32 features, counts another "
        "number of right answers "
        "than the loop in float64. The loop in float32 differs from itself in float64 in "
        f"{rounded} answers.",
        "",
        f"Adapting to one episode of 5-way 5-shot: {adapted['fine_tuning_conv4_s']:.2f} s for "
        "fine-tuning conv4 on "
        f"28 × 28 images, {1000 * adapted['mahalanobis_64_s']:.0f} ms for a Mahalanobis matrix on "
        "64 features.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
