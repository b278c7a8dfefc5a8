"""Colours and markers that can be told apart in grey and by colour-blind readers."""

# Okabe and Ito's colours, which colour-blind readers can distinguish; markers differ in grey too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "oDs^vP*"


def class_style(number: int) -> tuple[str, str]:
    """Return the colour and the marker of the n-th of many classes; the first 49 pairs differ.

    >>> class_style(0), class_style(7)
    (('#000000', 'o'), ('#000000', 'D'))
    """
    return COLOURS[number % 7], MARKERS[(number + number // 7) % 7]
