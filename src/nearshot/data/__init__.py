"""From files to batches: preparing datasets, stores of images, and which images make up a batch."""

from nearshot.data.datasets import SOURCES, plan_folder, plan_omniglot
from nearshot.data.loader import ImageFeed, Residence, choose_residence
from nearshot.data.preparation import open_or_prepare, prepare, prepare_folder, prepare_plan
from nearshot.data.readers import open_files
from nearshot.data.samplers import EpisodeBatches, IndependentBatches, ShuffledBatches
from nearshot.data.store import Store
from nearshot.episode_shape import EpisodeShape

__all__ = [
    "SOURCES",
    "EpisodeBatches",
    "EpisodeShape",
    "ImageFeed",
    "IndependentBatches",
    "Residence",
    "ShuffledBatches",
    "Store",
    "choose_residence",
    "open_files",
    "open_or_prepare",
    "plan_folder",
    "plan_omniglot",
    "prepare",
    "prepare_folder",
    "prepare_plan",
]
