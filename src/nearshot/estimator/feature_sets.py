"""Feature sets as columns of an image's flat vector, of one network or two."""

from nearshot.models.feature_sets import FeatureSet, FeatureSets

__all__ = ["FeatureSet", "FeatureSets", "pair_sets", "single_set"]

EMBEDDING = "embedding"


def single_set(dim: int) -> FeatureSets:
    """Return the description of an embedding alone."""
    return FeatureSets((FeatureSet(EMBEDDING, 0, dim),), ((EMBEDDING,),))


def pair_sets(first: FeatureSets, second: FeatureSets) -> FeatureSets:
    """Return the sets of two networks, whose flat vectors are side by side.

    Their names are "1/<name>" and "2/<name>". A candidate that both networks have becomes one, of
    the sets of both; the plain one is the mean of both plain ones. What only one of them has stays.
    """
    sets = []
    offset = 0
    for number, network in ((1, first), (2, second)):
        for feature_set in network.sets:
            start = offset + feature_set.start
            stop = offset + feature_set.stop
            name = f"{number}/{feature_set.name}"
            sets.append(FeatureSet(name, start, stop, feature_set.is_rooted))
        offset += network.dim
    candidates = [_named(1, first.candidates[0]) + _named(2, second.candidates[0])]
    for candidate in first.candidates[1:]:
        of_both = _named(1, candidate)
        if candidate in second.candidates[1:]:
            of_both += _named(2, candidate)
        candidates.append(of_both)
    candidates += [
        _named(2, candidate)
        for candidate in second.candidates[1:]
        if candidate not in first.candidates[1:]
    ]
    return FeatureSets(tuple(sets), tuple(candidates))


def _named(number: int, candidate: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a network's sets among those of two networks."""
    return tuple(f"{number}/{name}" for name in candidate)
