"""From images to batches: which images make up a batch."""

from nearshot.data.samplers import EpisodeBatches, IndependentBatches, ShuffledBatches
from nearshot.episodes import EpisodeShape

__all__ = ["EpisodeBatches", "EpisodeShape", "IndependentBatches", "ShuffledBatches"]
