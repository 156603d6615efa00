"""Labels are moved apart, no further than needed."""

from itertools import pairwise

import pytest

from intnacl.plots.labels import end_labels, spread


@pytest.mark.parametrize(
    ("values", "placed"),
    [
        ([], []),
        ([0.0, 5.0], [0.0, 5.0]),  # far enough
        ([3.0, 3.0], [2.5, 3.5]),
        ([1.0, 0.9], [1.45, 0.45]),  # the order stays
        ([0.0, 0.0, 1.2], [-0.6, 0.4, 1.4]),  # a pair pushes its neighbour
    ],
)
def test_spread(values: list[float], placed: list[float]) -> None:
    assert spread(values, 1.0) == pytest.approx(placed)


def test_spread_stays_inside() -> None:
    assert spread([0.0, 0.0, 0.0], 1.0, 0.0, 10.0) == pytest.approx([0.0, 1.0, 2.0])
    assert spread([10.0, 10.0], 1.0, 0.0, 10.0) == pytest.approx([9.0, 10.0])


def test_drawn_labels_do_not_cover_each_other() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.text import Text

    for right in (None, 2.0):
        figure, ax = plt.subplots(figsize=(5, 4))
        ax.plot([0, 1], [0, 50])
        end_labels(ax, [(i / 5, 1.0 + i / 100, f"curve {i}", "black") for i in range(6)], right=right)
        figure.canvas.draw()
        boxes = sorted((Text.get_window_extent(text) for text in ax.texts), key=lambda box: box.y0)
        assert len(boxes) == 6
        assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
        edge = ax.transData.transform((right or 1.0, 0))[0]
        assert all(box.x0 > edge for box in boxes)
        plt.close(figure)
