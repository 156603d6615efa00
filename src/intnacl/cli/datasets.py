"""`intnacl datasets`: list the data sets, and draw their images and views."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App

from intnacl.cli.flags import FRACTIONS

if TYPE_CHECKING:
    from intnacl.models.encoders import ContrastiveModel, Encoder

datasets = App(name="datasets")


@datasets.default
def list_datasets(*, root: Path | None = None) -> None:
    """List the data sets, their sizes, and the folder where their files are expected.

    **Examples**

    ```
    intnacl datasets
    intnacl datasets show cifar100
    ```

    Parameters
    ----------
    root
        Data folder; by default $INTNACL_DATA, else ~/.cache/intnacl.
    """
    from intnacl.console import print_table, show
    from intnacl.data.cache import default_root
    from intnacl.data.datasets import DATASETS

    rows = [
        (f"{name}:PATH" if entry.takes_path else name, entry.images, entry.size, entry.classes, entry.files)
        for name, entry in DATASETS.items()
    ]
    print_table("", ["name", "train + test", "size", "classes", "files"], rows, text=5)
    print()
    show(
        f"Data sets without a PATH are expected in {root or default_root()} (--root, or the environment "
        "variable INTNACL_DATA)."
    )


@datasets.command(name="show")
def show_dataset(
    name: str = "digits",
    *,
    out: Path | None = None,
    split: str = "train",
    root: Path | None = None,
    size: int | None = None,
    strict: bool = False,
    rows: int = 8,
    augment: str | None = None,
    extra: int = 1,
    mixed: int = 2,
    lam: float = 0.5,
    eps: Annotated[float, FRACTIONS] = 0.015,
    run: Path | None = None,
    seed: int = 0,
) -> None:
    """Draw images of a data set next to their training views, and print its size and checksum.

    **Examples**

    ```
    intnacl datasets show digits
    intnacl datasets show cifar100 --augment simclr --out cifar100.png
    intnacl datasets show folder:~/images --size 64 --strict
    intnacl datasets show digits --eps 0.1 --run runs/digits-intnacl-5-seed0
    ```

    Parameters
    ----------
    name
        A data set that `intnacl datasets` lists, such as cifar100 or folder:PATH.
    out
        File to write: .png, .jpg, .pdf or .svg; by default in runs/grids, named after the data set and these
        settings.
    split
        train or test.
    root
        Data folder; by default $INTNACL_DATA, else ~/.cache/intnacl.
    size
        Side length to which images of folder: and parquet: are resized; by default 32.
    strict
        Fail on broken images and name them, instead of skipping them.
    rows
        Number of images to draw, spread over the data set.
    augment
        Augmentation of the views: paper, simclr, crop_flip, pad_crop_flip or none; by default that of
        training on this set.
    extra
        Number of extra views.
    mixed
        Number of mixed views.
    lam
        λ, the weight of the image itself in a mixed view.
    eps
        Radius of the adversarial view, in pixels of [0, 1]; 0 leaves it out.
    run
        A run against whose encoder the adversarial view is made; by default an untrained encoder.
    seed
        Seed of the views, and of the untrained encoder.
    """
    from intnacl.console import show
    from intnacl.data import load
    from intnacl.data.datasets import absolute_name
    from intnacl.errors import check_count
    from intnacl.plots.gallery import MOST, adversarial_columns, draw_gallery, save_gallery, view_columns
    from intnacl.runs.folder import digest, file_name
    from intnacl.runs.resolve import resolve

    check_count("rows", rows, 1, MOST)
    if out is None:
        settings = (size, rows, augment, extra, mixed, lam, eps, seed, *map(str, (root, run)))
        out = Path("runs/grids") / f"{file_name(absolute_name(name))}-{split}-{digest(settings)}.png"
    named = {} if augment is None else {"augment": augment}
    config = resolve({"dataset": name} | named).augment
    dataset = load(name, split, root, size=size, strict=strict)
    chosen = dataset.spread(rows)
    columns = view_columns(dataset.images[chosen], config, seed=seed, extra=extra, mixed=mixed, lam=lam)
    if eps:
        side = dataset.images.shape[-1]
        network = trained_encoder(run, side) if run else untrained_model(name, side, seed)
        columns |= adversarial_columns(network, columns["anchor"], eps)
    save_gallery(draw_gallery(columns, dataset.captions(chosen)), out)
    show(dataset.summary())
    show(f"written: {out}")


def untrained_model(dataset: str, image_size: int, seed: int) -> "ContrastiveModel":
    """Return the model with which training on this data set starts."""
    from intnacl.models.encoders import build_model
    from intnacl.runs.resolve import resolve

    config = resolve({"dataset": dataset}).encoder
    return build_model(config, image_size=image_size, adversarial=True, seed=seed)


def trained_encoder(run: Path, image_size: int) -> "Encoder":
    """Return the encoder of a run; raise if it was trained on images of another size."""
    from intnacl.errors import InputError
    from intnacl.models.weights import load_encoder

    encoder, header, _ = load_encoder(run)
    wanted = header["image_size"]
    if wanted != image_size:
        raise InputError(
            f"{run} was trained on {wanted}×{wanted} images, but these are {image_size}×{image_size}: give "
            f"the run's data set, or --size {wanted} for your own images."
        )
    return encoder
