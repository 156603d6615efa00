"""Add a run to the encoders that ship with the package; for maintainers, before a release.

    python tools/ship.py runs/digits/intnacl-seed0 digits-intnacl --work runs/shipped/digits-intnacl

The encoder's matrices are rounded to bfloat16, which halves its file; norms and biases stay float32. The
rounded encoder is a separate run in the folder `--work`, where everything that its configuration asks for is
measured again, so that the shipped figures are those of the shipped weights. Other measurements, such as
AutoAttack, can be made there by the usual commands; the same call then packs them too. A large file is kept
in pieces, which are joined when it is loaded. The script also writes reference features, by which
tests/runs/test_shipped.py checks the shipped encoder.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from intnacl.console import show
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.files import new_folder, read_file, write_file, write_json, write_text
from intnacl.models.encoders import Encoder
from intnacl.models.hub import usage
from intnacl.models.shipped import SHIPPED
from intnacl.models.weights import clean_state, encoder_file, encoder_header, read_encoder, write_checksum
from intnacl.runs.card import model_card, without_folders
from intnacl.runs.folder import RunFolder
from intnacl.runs.measure import measure_all
from intnacl.runs.opened import Run, open_run
from intnacl.runs.overview import Overview
from intnacl.training.stop import Stop

REFERENCES = Path(__file__).parents[1] / "tests" / "runs" / "shipped"
LARGEST = 16 * 2**20  # bytes of a file
SAME = 0.999  # the least cosine of an image's features before and after rounding
CORNERS = ((0, 0), (120, 200), (240, 400), (360, 560))  # (y, x) of the crops of a photograph


def main() -> None:
    """Round, measure and pack the run that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a finished run")
    parser.add_argument("name", help="the name of the shipped encoder")
    parser.add_argument("--work", type=Path, help="the folder of the rounded run; by default RUN-shipped")
    parser.add_argument("--root", help="the data folder; by default the run's own")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    work = RunFolder(given.work or given.run.with_name(f"{given.run.name}-shipped"))
    if not work.encoder.exists():
        round_run(open_run(given.run, device=given.device, root=given.root), work)
    run = open_run(work, device=given.device, root=given.root)
    measure_all(run, Stop(), show)
    folder = pack(run, given.name, SHIPPED)
    write_reference(run.encoder, REFERENCES / f"{given.name}.safetensors")
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    show(f"written: {folder}, {total:,} bytes")


def round_run(run: Run, out: RunFolder) -> None:
    """Write a run with the same training and a rounded encoder, without measurements."""
    state = {key: rounded(value) for key, value in clean_state(run.encoder).items()}
    content = encoder_file(state, encoder_header(run.encoder.config, run.image_size, run.trained_on))
    images = run.images.labelled(run.config.dataset).queries.images[:1000]
    before = extract(run.encoder, images, device=run.device)
    run.encoder.backbone.load_state_dict(state)
    cosines = torch.cosine_similarity(before, extract(run.encoder, images, device=run.device))
    show(f"rounded to bfloat16: the least cosine of an image's features is {float(cosines.min()):.5f}")
    if not float(cosines.min()) > SAME:
        raise InputError(f"the features of {run.folder} change too much in bfloat16.")
    out.begin(replace(run.config, root=None))
    for file in (run.folder.log, run.folder.head):
        if file.exists():
            write_file(out / file.name, read_file(file))
    write_encoder(content, out.encoder)


def rounded(value: Tensor) -> Tensor:
    """Return a matrix or kernel in bfloat16, and any other tensor unchanged."""
    return value.to(torch.bfloat16) if value.is_floating_point() and value.ndim > 1 else value


def write_encoder(content: bytes, path: Path, *, largest: int | None = None) -> None:
    """Write an encoder's file and its checksum, in pieces if it is larger than `largest`."""
    write_checksum(path, content)
    if largest is None or len(content) <= largest:
        write_file(path, content)
        return
    for number, start in enumerate(range(0, len(content), largest), start=1):
        write_file(path.with_name(f"{path.name}.part{number:02}"), content[start : start + largest])


def pack(run: Run, name: str, shipped: Path, *, largest: int = LARGEST) -> Path:
    """Write a measured run to the folder of a shipped encoder, replacing a former one; return the folder."""
    result = without_folders(Overview(run).result())
    folder = shipped / name
    shipped.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as partial:
        out = RunFolder(partial)
        out.write_config(run.config)
        written = [*run.folder.measurements.glob("*.json"), *run.folder.path.glob("probe-*.safetensors")]
        for file in (*written, run.folder.log, run.folder.head):
            if file.exists():
                write_file(partial / file.relative_to(run.folder.path), read_file(file))
        write_encoder(read_encoder(run.folder.encoder), out.encoder, largest=largest)
        write_json(out.result, result)
        code = usage(name, run.encoder)
        where = "In any installation of intnacl, without a network"
        card = model_card(run.config, result, code, license="apache-2.0", where=where)
        write_text(partial / "README.md", card)
    return folder


def write_reference(encoder: Encoder, path: Path) -> None:
    """Write the encoder's features of `photographs` as a reference."""
    from safetensors.torch import save

    with torch.no_grad():
        features = encoder.cpu()(photographs(encoder.image_size))
    write_file(path, save({"features": features}))


def photographs(side: int) -> Tensor:
    """Return crops of scikit-learn's two photographs, pixels in [0, 1] of shape (8, 3, side, side)."""
    from sklearn.datasets import load_sample_image

    crops = [
        load_sample_image(name)[y : y + side, x : x + side]
        for name in ("china.jpg", "flower.jpg")
        for y, x in CORNERS
    ]
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2) / 255


if __name__ == "__main__":
    main()
