"""Neighbours by cosine, and layouts that preserve them."""

import pytest
import torch

from intnacl.errors import InputError
from intnacl.evaluation.projection import FEWEST, nearest_neighbours, nearest_to, neighbours_kept, project


def clusters(each: int = 20) -> torch.Tensor:
    centres = torch.eye(3, 8).repeat_interleave(each, dim=0)
    return centres + 0.05 * torch.randn(3 * each, 8)


def test_neighbours_have_the_largest_cosines_and_never_include_the_image_itself():
    features = torch.tensor([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    found = nearest_neighbours(features, 2)
    assert found.index_NK[[0, 2]].tolist() == [[1, 3], [3, 1]]
    assert found.cosine_NK[0].tolist() == pytest.approx([9 / 82**0.5, 0.5**0.5])
    assert nearest_neighbours(features, 9).index_NK.shape == (4, 3)
    with pytest.raises(InputError, match="nan or infinity"):
        nearest_neighbours(features / 0, 2)


def test_tiles_do_not_change_the_neighbours(monkeypatch):
    features = torch.randn(50, 4)
    whole = nearest_neighbours(features, 5)
    monkeypatch.setattr("intnacl.evaluation.projection.TILE", 7)
    assert torch.equal(nearest_neighbours(features, 5).index_NK, whole.index_NK)


def test_a_layout_keeps_neighbours_together_and_is_reproducible():
    features = clusters()
    plane = project(features)
    assert plane.shape == (60, 2)
    nearest_on_plane = torch.cdist(plane, plane).fill_diagonal_(torch.inf).argmin(1)
    assert torch.equal(nearest_on_plane // 20, torch.arange(60) // 20)
    assert torch.equal(project(features), plane)
    assert torch.equal(project(4 * features), plane)  # lengths do not matter by cosine


@pytest.mark.parametrize("n", [1, 2, 3, FEWEST - 1, FEWEST])
def test_a_few_images_or_equal_ones_have_a_layout_too(n):
    for features in (torch.randn(n, 4), torch.ones(n, 4), torch.randn(n, 1)):
        plane = project(features)
        assert plane.shape == (n, 2)
        assert plane.isfinite().all()


def test_neighbours_kept_is_the_share_found_on_the_plane():
    index = nearest_neighbours(clusters(), 4).index_NK
    plane = torch.randn(60, 2)
    distance = torch.cdist(plane, plane).fill_diagonal_(torch.inf)
    on_plane = distance.topk(4, largest=False).indices
    expected = [len(set(a) & set(b)) / 4 for a, b in zip(index.tolist(), on_plane.tolist(), strict=True)]
    assert neighbours_kept(index, plane) == pytest.approx(sum(expected) / 60)
    assert neighbours_kept(on_plane, plane) == 1.0


def test_neighbours_of_some_images_do_not_depend_on_the_pieces():
    features = torch.tensor([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    for pieces in ([features], features.split(3), features.split(1)):
        assert nearest_to(torch.tensor([0, 2]), pieces, 2).tolist() == [[1, 3], [3, 1]]
        assert nearest_to(torch.tensor([0]), pieces, 9).shape == (1, 3)
