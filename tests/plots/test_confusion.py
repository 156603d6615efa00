"""The picture of a confusion matrix."""

import io

import numpy as np
import pytest

from intnacl.plots.confusion import READABLE, draw_confusion


@pytest.mark.parametrize("classes", [2, READABLE, READABLE + 1, 200])
def test_few_classes_are_labelled_with_names_and_counts_and_many_are_not(classes):
    counts = [[40 if i == j else int(j == i + 1) for j in range(classes)] for i in range(classes)]
    names = [f"${i} ñ <b>_" for i in range(classes)]
    figure = draw_confusion(counts, names)
    figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    written = [text.get_text() for text in axes.texts]
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    if classes > READABLE:
        assert written == []
        assert not set(ticks) & set(names)
    else:
        assert written == [str(n) for row in counts for n in row if n]
        assert ticks == names
    shown = np.asarray(axes.images[0].get_array())[..., 3]
    assert shown[0, 0] > shown[0, 1] > 0
    assert shown[1, 0] == 0
