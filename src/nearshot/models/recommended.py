"""Which backbone "auto" is, and which one to recommend instead of another."""

import warnings

from nearshot.models.efficientnet_lite import PHOTOS_EXTRA, VARIANTS, weights_file
from nearshot.models.timm import PREFIX as TIMM_PREFIX

AUTO = "auto"
SMALL = "resnet12-nca-cifar-fs"
"""The backbone that comes with nearshot: fast, and the least accurate on photographs."""
PHOTOS = "efficientnet-lite0"
"""The backbone for photographs, which the extra `photos` installs."""
MORE_ACCURATE = f"{PHOTOS}+efficientnet-lite2"
"""Two backbones together: more accurate, and about a third as fast as `PHOTOS` alone."""
TIMM_BACKBONES = (
    f"{TIMM_PREFIX}vit_small_patch14_dinov2.lvd142m",
    f"{TIMM_PREFIX}convnext_tiny.fb_in22k",
)
"""The recommended timm models: a vision transformer and a convolutional network."""
TIMM_INPUT_SIZE = 224
"""The recommended input size of both. DINOv2's own, 518, has over five times as many patches."""
ACCURACY = {
    SMALL: {"flowers": 67.1, "birds": 40.2, "signs": 67.6},
    PHOTOS: {"flowers": 94.1, "birds": 92.9, "signs": 72.1},
}
"""Accuracy in per cent: 10 unseen classes of 5 photos, 20 draws (benchmarks/photos.py)."""
LOW_ACCURACY = 0.8
"""The estimated accuracy below which a better backbone is recommended."""


def auto_backbone() -> str:
    """Return the best installed backbone for photographs; warn if it is the small one."""
    if weights_file(PHOTOS) is not None:
        return PHOTOS
    warnings.warn(f"The small network {SMALL} is used. {_photos_hint()}", stacklevel=2)
    return SMALL


def installed_backbones() -> list[str]:
    """Return the names of the backbones whose weights are installed, and of the pair."""
    variants = [name for name in VARIANTS if weights_file(name) is not None]
    names = [SMALL, *variants]
    if set(MORE_ACCURATE.split("+")) <= set(variants):
        names.append(MORE_ACCURATE)
    return names


def advice_on(backbone: object, accuracy: float) -> str:
    """Return a recommendation of a better backbone, or an empty text if there is none to give.

    It is given if the expected accuracy, a fraction, is low.
    """
    spec = getattr(backbone, "spec", None)
    if spec is None or spec.name.startswith(TIMM_PREFIX) or accuracy >= LOW_ACCURACY:
        return ""
    if spec.name.startswith("efficientnet-"):
        return (
            "A larger network may do better, but is slower: pip install '.[timm]' in the clone, "
            f"then use the backbone {TIMM_BACKBONES[0]} with input_size {TIMM_INPUT_SIZE}."
        )
    if weights_file(PHOTOS) is None:
        return _photos_hint()
    return f"The backbone {PHOTOS} may be better."


def _photos_hint() -> str:
    gains = []
    for kind, accuracy in ACCURACY[SMALL].items():
        gains.append(f"{ACCURACY[PHOTOS][kind]:.0f} % instead of {accuracy:.0f} % on {kind}")
    return f"{PHOTOS} is more accurate on photographs ({', '.join(gains)}): {PHOTOS_EXTRA}."
