"""Slow loops, written from the paper's equations, that the fast code is checked against.

Nothing here calls nearshot. Sums are Python loops over scalars, so that each formula can be read
next to the paper; autograd differentiates through them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Similarity = Callable[[Tensor, Tensor], Tensor]


def squared_distance(first: Tensor, second: Tensor) -> Tensor:
    """‖a − b‖², coordinate by coordinate."""
    total = first.new_zeros(())
    for a, b in zip(first, second, strict=True):
        total = total + (a - b) * (a - b)
    return total


def similarity(first: Tensor, second: Tensor) -> Tensor:
    """exp(−‖a − b‖²)."""
    return torch.exp(-squared_distance(first, second))


def temperature_average(
    held_out: Sequence[Sequence[float]],
    codes: Sequence[int],
    query: Sequence[float],
    temperatures: Sequence[float],
) -> list[float]:
    """Σ_T π(T) softmax(query / T), π(T) ∝ p(T) Π_i softmax(held-out_i / T)[code_i].

    p is a density of the logarithm of T: 0.7 of a normal one around log 1 with deviation 0.5, and
    0.3 around log(0.4 / 0.06) with deviation 1.
    """

    def softmax(scores: Sequence[float], temperature: float) -> list[float]:
        powers = [math.exp((score - max(scores)) / temperature) for score in scores]
        return [power / sum(powers) for power in powers]

    weights = []
    for temperature in temperatures:
        narrow = math.exp(-((math.log(temperature) / 0.5) ** 2) / 2) / 0.5
        wide = math.exp(-(math.log(temperature / (0.4 / 0.06)) ** 2) / 2)
        weight = 0.7 * narrow + 0.3 * wide
        for scores, code in zip(held_out, codes, strict=True):
            weight *= softmax(scores, temperature)[code]
        weights.append(weight)
    answer = [0.0] * len(query)
    for temperature, weight in zip(temperatures, weights, strict=True):
        for code, probability in enumerate(softmax(query, temperature)):
            answer[code] += weight / sum(weights) * probability
    return answer


def look_alike_groups(
    features: Sequence[Sequence[float]], codes: Sequence[int], cosine: float
) -> list[set[int]]:
    """The images, as sets of indices, that chains of pairs with at least that cosine connect.

    Both images of a pair are of one class.
    """

    def length(vector: Sequence[float]) -> float:
        return math.sqrt(sum(value * value for value in vector))

    groups = [{image} for image in range(len(codes))]
    for i, j in itertools.combinations(range(len(codes)), 2):
        product = sum(a * b for a, b in zip(features[i], features[j], strict=True))
        if codes[i] == codes[j] and product >= cosine * length(features[i]) * length(features[j]):
            joined = [group for group in groups if group & {i, j}]
            groups = [group for group in groups if not group & {i, j}]
            groups.append(set().union(*joined))
    return groups


def nca(z: Tensor, y: Tensor) -> Tensor:
    """L_NCA of Section 2.2; an anchor without a positive adds nothing."""
    b = len(z)
    total = z.new_zeros(())
    for i in range(b):
        numerator = sum(
            (similarity(z[i], z[j]) for j in range(b) if j != i and y[j] == y[i]), z.new_zeros(())
        )
        denominator = sum((similarity(z[i], z[k]) for k in range(b) if k != i), z.new_zeros(()))
        if any(j != i and y[j] == y[i] for j in range(b)):
            total = total + torch.log(numerator / denominator)
    return -total / b


def means_by_class(support: Tensor, support_labels: Tensor) -> dict[int, Tensor]:
    """The prototypes c_k of Section 2.2."""
    prototypes = {}
    for k in sorted({int(label) for label in support_labels}):
        members = [s for s, label in zip(support, support_labels, strict=True) if label == k]
        prototypes[k] = sum(members[1:], members[0]) / len(members)
    return prototypes


def prototypical(
    support: Tensor, support_labels: Tensor, query: Tensor, query_labels: Tensor
) -> Tensor:
    """L_PNs of Section 2.2."""
    prototypes = means_by_class(support, support_labels)
    total = query.new_zeros(())
    for q, label in zip(query, query_labels, strict=True):
        denominator = sum((similarity(q, c) for c in prototypes.values()), query.new_zeros(()))
        total = total + torch.log(similarity(q, prototypes[int(label)]) / denominator)
    return -total / len(query)


def matching(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    query_labels: Tensor,
    similarity: Similarity = similarity,
) -> Tensor:
    """L_MNs of Section 2.2."""
    total = query.new_zeros(())
    for q, label in zip(query, query_labels, strict=True):
        own = [
            s
            for s, support_label in zip(support, support_labels, strict=True)
            if support_label == label
        ]
        numerator = sum((similarity(q, s) for s in own), query.new_zeros(()))
        denominator = sum((similarity(q, s) for s in support), query.new_zeros(()))
        total = total + torch.log(numerator / denominator)
    return -total / len(query)


def queries_and_prototypes(
    support: Tensor, support_labels: Tensor, query: Tensor, query_labels: Tensor
) -> Tensor:
    """Appendix B's second equation: NCA on Q ∪ C, row 7 of Figure 4."""
    prototypes = means_by_class(support, support_labels)
    points = [*query, *prototypes.values()]
    labels = [*query_labels.tolist(), *prototypes]
    return nca(torch.stack(points), torch.tensor(labels))


def published(
    anchors: Tensor,
    anchor_labels: Tensor,
    candidates: Tensor,
    candidate_labels: Tensor,
    *,
    same_set: bool,
    floor: float = 1e-10,
    temperature: float | Tensor = 1.0,
    kept_pairs: Tensor | None = None,
) -> Tensor:
    """Return the arithmetic of the published experiments, literally.

    p = pos / (pos + max(neg, floor)); an anchor with p < floor adds nothing; the sum is divided by
    all anchors.
    """
    total = anchors.new_zeros(())
    for i in range(len(anchors)):
        pos = anchors.new_zeros(())
        neg = anchors.new_zeros(())
        for j in range(len(candidates)):
            if (same_set and i == j) or (kept_pairs is not None and not kept_pairs[i, j]):
                continue
            term = torch.exp(-squared_distance(anchors[i], candidates[j]) / temperature)
            if anchor_labels[i] == candidate_labels[j]:
                pos = pos + term
            else:
                neg = neg + term
        if neg < floor:
            neg = torch.full_like(neg, floor)
        p = pos / (pos + neg)
        if p >= floor and pos > 0:
            total = total + torch.log(p)
    return -total / len(anchors)


def cosine_similarity(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of the angle between two vectors."""
    zero = first.new_zeros(())
    dot = sum((a * b for a, b in zip(first, second, strict=True)), zero)
    first_length = sum((a * a for a in first), zero).sqrt()
    second_length = sum((b * b for b in second), zero).sqrt()
    return dot / (first_length * second_length)


def matching_cosine(
    support: Tensor, support_labels: Tensor, query: Tensor, query_labels: Tensor
) -> Tensor:
    """Vinyals et al.: a softmax over cosine similarities."""
    return matching(
        support,
        support_labels,
        query,
        query_labels,
        lambda q, s: torch.exp(cosine_similarity(q, s)),
    )


def supervised_contrastive(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """L_out of Khosla et al. (2020), equation 2; an anchor without a positive adds nothing."""
    n = len(z)
    total = z.new_zeros(())
    for i in range(n):
        positives = [p for p in range(n) if p != i and y[p] == y[i]]
        others = [
            torch.exp(cosine_similarity(z[i], z[a]) / temperature) for a in range(n) if a != i
        ]
        for p in positives:
            likelihood = torch.exp(cosine_similarity(z[i], z[p]) / temperature) / sum(
                others, z.new_zeros(())
            )
            total = total - torch.log(likelihood) / len(positives)
    return total / n


def supervised_contrastive_published(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """What Appendix C ran: cosines at least 1e-10, only negatives below the line, no 1/|P|."""
    n = len(z)
    total = z.new_zeros(())

    def score(i: int, j: int) -> Tensor:
        cosine = cosine_similarity(z[i], z[j])
        if cosine < 1e-10:
            cosine = torch.full_like(cosine, 1e-10)
        return torch.exp(cosine / temperature)

    for i in range(n):
        negatives = sum((score(i, j) for j in range(n) if y[j] != y[i]), z.new_zeros(()))
        negatives = negatives.clamp(min=1e-10)
        for p in range(n):
            if p != i and y[p] == y[i]:
                total = total - torch.log(score(i, p) / negatives)
    return total / n


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy against 1 − s for the label plus s / classes for every class."""
    total = logits.new_zeros(())
    for row, label in zip(logits, labels, strict=True):
        normaliser = sum((torch.exp(value) for value in row), row.new_zeros(()))
        for k, value in enumerate(row):
            target = (1 - smoothing) * bool(k == label) + smoothing / len(row)
            total = total - target * torch.log(torch.exp(value) / normaliser)
    return total / len(logits)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The mean of T² Σ_c p_c log(p_c / q_c); p of the teacher's, q of the student's logits / T."""
    total = student.new_zeros(())
    for mine, theirs in zip(student, teacher, strict=True):
        all_mine = sum((torch.exp(value / temperature) for value in mine), mine.new_zeros(()))
        all_theirs = sum((torch.exp(value / temperature) for value in theirs), theirs.new_zeros(()))
        for a, b in zip(mine, theirs, strict=True):
            p = torch.exp(b / temperature) / all_theirs
            q = torch.exp(a / temperature) / all_mine
            total = total + p * torch.log(p / q)
    return temperature**2 * total / len(student)


def count_image_pairs(n_way: int, n_shot: int, n_query: int, *, separate: bool) -> tuple[int, int]:
    """Positives and negatives of a batch, by looking at each unordered pair of images once."""
    roles = ["support"] * n_shot + ["query"] * n_query
    positives = 0
    negatives = 0
    for first, second in itertools.combinations(itertools.product(range(n_way), roles), 2):
        first_class, first_role = first
        second_class, second_role = second
        if separate and first_role == second_role:
            continue
        if first_class == second_class:
            positives += 1
        else:
            negatives += 1
    return positives, negatives


def mean_image_pairs(class_sizes: Sequence[int], batch_size: int) -> tuple[float, float, float]:
    """Positives, negatives and images alone of their class: the mean over every possible batch."""
    images: list[int] = []
    for k, size in enumerate(class_sizes):
        images += [k] * size
    n_batches = 0
    positives = 0
    negatives = 0
    alone = 0
    for batch in itertools.combinations(images, batch_size):
        n_batches += 1
        alone += sum(batch.count(k) == 1 for k in batch)
        for first, second in itertools.combinations(batch, 2):
            if first == second:
                positives += 1
            else:
                negatives += 1
    return positives / n_batches, negatives / n_batches, alone / n_batches


def centroid_answer(support: Tensor, query: Tensor) -> int:
    """Nearest centroid of Section 2.3 for one query; `support` is (way, shot, dim)."""
    distances = [float((query - shots.mean(0)).norm()) for shots in support]
    return distances.index(min(distances))


def soft_answer(support: Tensor, query: Tensor) -> int:
    """Soft assignment of Section 2.3 for one query."""

    def likelihood(shots: Tensor) -> float:
        return sum(math.exp(-float((query - s).square().sum())) for s in shots)

    likelihoods = [likelihood(shots) for shots in support]
    return likelihoods.index(max(likelihoods))


def knn_answer(support: Tensor, query: Tensor, k: int) -> int:
    """k-NN of Section 2.3 for one query; of tied classes, that of the nearest neighbour wins."""
    neighbours = []
    for way, shots in enumerate(support):
        neighbours += [(float((query - s).norm()), way) for s in shots]
    neighbours.sort()
    votes = [way for _, way in neighbours[:k]]
    most = max(votes.count(way) for way in votes)
    return next(way for _, way in neighbours if votes.count(way) == most)


def ridge_scores(
    classes: Sequence[Tensor],
    query: Tensor,
    *,
    weights: Sequence[float] | None = None,
    penalty: float | None = None,
) -> list[float]:
    """Ridge regression to class membership, for one query; each of `classes` is (image, dim).

    Least squares with one equation an image and one a penalised weight; the constant, in the last
    column, has none. By default an image weighs one over the size of its class, times a number that
    makes the mean 1, and the penalty is the mean squared distance of the images, so weighted, from
    their mean.
    """
    images = []
    for number, of_class in enumerate(classes):
        images += [(image, number) for image in of_class]
    if weights is None:
        weights = [len(images) / len(classes) / len(classes[number]) for _, number in images]
    if penalty is None:
        mean = torch.stack([of_class.mean(0) for of_class in classes]).mean(0)
        distances = [
            w * float((image - mean).square().sum())
            for w, (image, _) in zip(weights, images, strict=True)
        ]
        penalty = sum(distances) / len(images)
    left = []
    right = []
    for w, (image, number) in zip(weights, images, strict=True):
        left.append([math.sqrt(w) * float(value) for value in image] + [math.sqrt(w)])
        right.append([math.sqrt(w) * (number == other) for other in range(len(classes))])
    dim = len(query)
    for column in range(dim):
        left.append([math.sqrt(penalty) * (column == other) for other in range(dim + 1)])
        right.append([0.0] * len(classes))
    solved = torch.linalg.lstsq(
        torch.tensor(left, dtype=torch.float64),
        torch.tensor(right, dtype=torch.float64),
        driver="gelsd",
    ).solution
    scores = []
    for number in range(len(classes)):
        constant = float(solved[dim, number])
        weighted = [float(query[column]) * float(solved[column, number]) for column in range(dim)]
        scores.append(constant + sum(weighted))
    return scores


class Stacked(NamedTuple):
    """The weights of candidates, and the probabilities of queries and of held-out images."""

    weights: list[float]
    answers: list[list[float]]
    held_out: dict[int, list[float]]


def stacked_ridges(
    sets: Sequence[Tensor],
    codes: Sequence[int],
    queries: Sequence[Tensor],
    candidates: Sequence[Sequence[int]],
    rounds: Sequence[tuple[list[int], list[int]]],
    temperatures: Sequence[float],
) -> Stacked:
    """Ridge regressions on several feature sets, weighed by images that they were fitted without.

    `sets` and `queries` are (image, dim) for each set; the first of `candidates` is the plain one;
    `rounds` are the images that stay and those that are tested. Weights of temperatures under 1e-4,
    and of candidates under 0.01, count as 0.
    """

    def unit(row: Tensor) -> Tensor:
        return row / math.sqrt(sum(float(value) ** 2 for value in row))

    def features(number: int, rows: Sequence[Tensor]) -> list[Tensor]:
        columns = []
        for position in candidates[number]:
            of_set = torch.stack([unit(row) for row in rows[position]])
            if number > 0:
                mean = torch.stack([unit(row) for row in sets[position]]).mean(0)
                of_set = torch.stack([unit(row - mean) for row in of_set])
            columns.append(of_set / math.sqrt(len(candidates[number])))
        return list(torch.cat(columns, dim=1))

    def scores(number: int, kept: Sequence[int], query: Tensor) -> list[float]:
        support = features(number, sets)
        classes = [
            torch.stack([support[i] for i in kept if codes[i] == code])
            for code in range(max(codes) + 1)
        ]
        return [score / 0.06 for score in ridge_scores(classes, query)]

    def softmax(values: Sequence[float], temperature: float) -> list[float]:
        largest = max(values)
        powers = [math.exp((value - largest) / temperature) for value in values]
        total = sum(powers)
        return [power / total for power in powers]

    def without_small(weights: Sequence[float], least: float) -> list[float]:
        kept = [weight if weight >= least else 0.0 for weight in weights]
        return [weight / sum(kept) for weight in kept]

    def posterior(number: int, rows: Sequence[int]) -> list[float]:
        logarithms = []  # a product of many small numbers would be 0
        for temperature in temperatures:
            narrow = math.exp(-((math.log(temperature) / 0.5) ** 2) / 2) / 0.5
            wide = math.exp(-(math.log(temperature / (0.4 / 0.06)) ** 2) / 2)
            logarithm = math.log(0.7 * narrow + 0.3 * wide)
            for row in rows:
                scores = held_out[number][row]
                largest = max(scores)
                powers = [math.exp((value - largest) / temperature) for value in scores]
                logarithm += (scores[codes[row]] - largest) / temperature
                logarithm -= math.log(sum(powers))
            logarithms.append(logarithm)
        densities = [math.exp(logarithm - max(logarithms)) for logarithm in logarithms]
        return without_small([density / sum(densities) for density in densities], 1e-4)

    def average(pi: Sequence[float], values: Sequence[float]) -> list[float]:
        mean = [0.0] * len(values)
        for weight, temperature in zip(pi, temperatures, strict=True):
            for code, share in enumerate(softmax(values, temperature)):
                mean[code] += weight * share
        return mean

    def fit(rows: Sequence[int]) -> tuple[list[float], list[list[float]]]:
        posteriors = [posterior(number, rows) for number in range(len(candidates))]
        likelihoods: list[dict[int, float]] = []
        for number, pi in enumerate(posteriors):
            likelihoods.append({})
            for row in rows:
                likelihoods[number][row] = average(pi, held_out[number][row])[codes[row]]
        weights = [1 / len(candidates)] * len(candidates)
        for _ in range(50):
            sums = [1.0] + [0.0] * (len(candidates) - 1)
            for row in rows:
                likely = []
                for number, weight in enumerate(weights):
                    likely.append(weight * likelihoods[number][row])
                for number, value in enumerate(likely):
                    sums[number] += value / sum(likely)
            weights = [value / (len(rows) + 1) for value in sums]
        return without_small(weights, 0.01), posteriors

    def mixed(
        weights: Sequence[float], posteriors: Sequence[list[float]], values: Sequence[list[float]]
    ) -> list[float]:
        mean = [0.0] * (max(codes) + 1)
        for weight, pi, of_candidate in zip(weights, posteriors, values, strict=True):
            for code, share in enumerate(average(pi, of_candidate)):
                mean[code] += weight * share
        return mean

    held_out: list[dict[int, list[float]]] = []
    for number in range(len(candidates)):
        support = features(number, sets)
        held_out.append({})
        for kept, tested in rounds:
            for row in tested:
                held_out[number][row] = scores(number, kept, support[row])
    every_row = [row for _, tested in rounds for row in tested]
    weights, posteriors = fit(every_row)
    every_image = range(len(codes))
    answers = []
    for query in range(len(queries[0])):
        values = [
            scores(number, every_image, features(number, queries)[query])
            for number in range(len(candidates))
        ]
        answers.append(mixed(weights, posteriors, values))
    nested: dict[int, list[float]] = {}
    for _, tested in rounds:
        others = [row for row in every_row if row not in tested]
        if not others:  # nothing tells candidates or temperatures apart
            continue
        nested_weights, nested_posteriors = fit(others)
        for row in tested:
            values = [of_candidate[row] for of_candidate in held_out]
            nested[row] = mixed(nested_weights, nested_posteriors, values)
    return Stacked(weights, answers, nested)


def ridge_answer(support: Tensor, query: Tensor) -> int:
    """The class with the highest score of a ridge regression."""
    scores = ridge_scores(list(support), query)
    return scores.index(max(scores))


def knn_answer_by_shots(support: Tensor, query: Tensor) -> int:
    """k-NN with as many neighbours as there are shots."""
    return knn_answer(support, query, k=support.shape[1])


# The classifiers by name, each a function of (way, shot, dim) and one query.
ANSWERS: dict[str, Callable[[Tensor, Tensor], int]] = {
    "centroid": centroid_answer,
    "soft": soft_answer,
    "knn": knn_answer_by_shots,
    "ridge": ridge_answer,
}
