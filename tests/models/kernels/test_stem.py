"""The kernels' checks, on the GPU or, where there is none, in Triton's interpreter."""

from triton_checks import can_run, run_checks


@can_run
def test_kernels_do_what_torch_does() -> None:
    run_checks("fused_stem_checks.py")
