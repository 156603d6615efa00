"""The kernels' checks, on the GPU or, where there is none, in Triton's interpreter."""

import pytest
import torch
from triton_checks import can_run, run_checks

from intnacl.models.kernels.batchnorm import _Layout, _Sizes


@can_run
def test_kernels_do_what_torch_does() -> None:
    run_checks("fused_norm_checks.py")


@pytest.mark.parametrize(
    "layout",
    [_Layout(2, 2, 1), _Layout(7, 6, 1), _Layout(1, 0, 1), _Layout(3, 2, 2), _Layout(500, 500, 500)],
    ids=["pair", "intnacl", "attack", "joint", "many"],
)
def test_all_layers_share_the_kernels_that_add_up_slots(layout: _Layout) -> None:
    """Each further one would take a second of every first run. All slots of a group must fit into them."""
    sizes = [
        _Sizes(torch.empty(layout.views * rows, channels, 8, 8, device="meta"), layout)
        for channels in (16, 64, 128, 512)
        for rows in (1, 256)
    ]
    assert len({tuple(each.table.items()) for each in sizes}) == 1
    assert all(layout.together * each.rows_columns_slots[2] <= each.table["SLOTS"] for each in sizes)
