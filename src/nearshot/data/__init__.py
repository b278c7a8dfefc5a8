"""From files to batches: preparing datasets, stores of images, and which images make up a batch."""

from nearshot.data.archives import open_files
from nearshot.data.loading import ImageFeed, Residence, choose_residence
from nearshot.data.preparation import open_or_prepare, prepare, prepare_folder, prepare_plan
from nearshot.data.samplers import EpisodeBatches, IndependentBatches, ShuffledBatches
from nearshot.data.sources import SOURCES, plan_folder, plan_omniglot
from nearshot.data.store import Store
from nearshot.episodes import EpisodeShape

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
