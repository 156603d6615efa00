"""`intnacl probe`, `knn`, `attack`, `corruptions`, `embed` and `export`: measure and use a trained run."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from intnacl.cli.flags import FRACTIONS, MANY, pairs
from intnacl.errors import InputError


def probe(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    protocol: str = "run",
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    set_: Annotated[tuple[str, ...], MANY, Parameter(name="--set")] = (),
    out: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
    max_minutes: float | None = None,
) -> None:
    """Train a linear probe on a run's frozen features, on its own data set or on others (transfer).

    Reports the last epoch's accuracy on all test images, and fails if the encoder's weights or batch norm
    statistics change. Results are stored in RUN/parts; the same measurement is not repeated.

    Robust encoders are compared by three protocols: slf is the linear probe of the run itself, alf trains the
    layer on attacked images, and aff trains encoder and layer adversarially, in a new run folder; the same
    command resumes it.

    **Examples**

    ```
    intnacl probe runs/c100
    intnacl probe runs/c100 --dataset cifar100 cifar10
    intnacl probe runs/c100 --protocol quick   # L-BFGS instead of Adam
    intnacl probe runs/c100 --protocol clae    # raw features, rate 3e-4
    intnacl probe runs/c100 --protocol hcl     # augmented, BN in train mode
    intnacl probe runs/c10 --protocol alf      # attacked at 8/255
    intnacl probe runs/c10 --protocol aff --out runs/c10-aff
    intnacl probe runs/c100 --lr 0.01 --set probe.standardize=true
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder, or a name of `intnacl.pretrained()`, such as digits-intnacl.
    dataset
        Data sets with images of the run's size; by default the run's own.
    protocol
        run or slf (the probe settings of the run's configuration), quick, clae, hcl, alf or aff.
    epochs
        Passes over the features (for probes by Adam) or over the images; by default the protocol's.
    batch_size
        Samples per batch; by default the protocol's.
    lr
        Learning rate; by default the protocol's.
    set_
        Any setting of the probe in docs/settings.md by its dotted name: probe.solver=lbfgs probe.l2=1e-3 …;
        for alf, the settings of alf; for aff, those of finetune and train.
    out
        Folder for a copy of the run, to which measurements are written; by default RUN itself. Required if
        RUN is a name. For aff, the folder of the new run; by default RUN-aff.
    root
        Data folder; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    max_minutes
        Only for aff: save and stop after this many minutes; the same command resumes.
    """
    part = "train" if protocol == "aff" else "probe"
    given = {f"{part}.epochs": epochs, f"{part}.batch_size": batch_size, f"{part}.lr": lr}
    changes = {key: value for key, value in given.items() if value is not None} | pairs(set_)
    if protocol == "aff":
        from intnacl.cli.classifier import finetune_and_measure

        finetune_and_measure(run, dataset, changes, out, root, device, max_minutes)
    if max_minutes is not None:
        raise InputError(
            "--max-minutes belongs to --protocol aff: leave it out, because other probes cannot be stopped."
        )
    from intnacl.runs.commands import probe_command

    probe_command(run, dataset, protocol, changes, device, root, out)


def knn(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    k: int | None = None,
    weights: str = "exp",
    out: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Classify images by the nearest neighbours of their frozen features, without training.

    **Examples**

    ```
    intnacl knn runs/c100
    intnacl knn runs/c100 --dataset cifar10 --k 20
    intnacl knn runs/c10 --k 10 --weights uniform   # like scikit-learn
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder, or a name of `intnacl.pretrained()`, such as digits-intnacl.
    dataset
        Data sets with images of the run's size; by default the run's own.
    k
        Number of neighbours; by default 200, or the images per class if fewer.
    weights
        exp (each neighbour's vote counts exp(cosine / 0.1)) or uniform (all votes count the same).
    out
        Folder for a copy of the run, to which measurements are written; by default RUN itself. Required if
        RUN is a name.
    root
        Data folder; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.runs.commands import knn_command

    knn_command(run, dataset, k, weights, device, root, out)


def attack(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    eps: Annotated[tuple[float, ...], MANY, FRACTIONS] = (),
    attacks: Annotated[tuple[str, ...], MANY] = ("fgsm", "pgd", "pgd_tuned"),
    images: int | None = None,
    protocol: str | None = None,
    out: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Attack a run's classifier: print its accuracy by eps and in the worst case, and draw examples.

    Pixels are in [0, 1]; accuracies are scored in float32.

    **Examples**

    ```
    intnacl attack runs/c100               # eps 0.002 … 0.032 and 8/255
    intnacl attack runs/c100 --eps 0.002 0.004 --attacks fgsm pgd
    intnacl attack runs/c100 --eps 8/255 --attacks autoattack --images 1000
    intnacl attack runs/c100 --dataset cifar10
    intnacl attack runs/c10 --eps 8/255 --attacks autoattack --protocol alf
    intnacl attack digits-intnacl --eps 0.1 --out runs/mine
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder, or a name of `intnacl.pretrained()`, such as digits-intnacl. Its
        classifier is the linear probe with the run's own settings, which is trained first if necessary.
    dataset
        Data sets with images of the run's size; by default the run's own.
    eps
        Radii of the ball, for pixels in [0, 1], also as fractions; by default 0.002 … 0.032 and 8/255, or on
        your own images 1/255 … 16/255.
    attacks
        fgsm, pgd (the paper's), pgd_tuned (step eps/4, 40 steps) and autoattack; by default the first three.
    images
        Attack a fixed random selection of this many test images; by default all.
    protocol
        The classifier to attack: slf (the run's linear probe) or alf (its linear layer is trained on attacked
        images); by default the run's own, which for a run of `probe --protocol aff` is the layer trained with
        the encoder.
    out
        Folder for a copy of the run, to which measurements are written; by default RUN itself. Required if
        RUN is a name.
    root
        Data folder; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.runs.commands import attack_command

    attack_command(run, dataset, eps, attacks, images, device, root, protocol, out)


def corruptions(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    only: Annotated[tuple[str, ...], MANY] = (),
    protocol: str | None = None,
    out: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Measure a run's classifier on images with 15 common corruptions (those of CIFAR-10-C).

    Images are corrupted on the fly, at five severities, with a fixed seed. The photographs of frost come with
    the package imagecorruptions (the extra `corruptions`).

    **Examples**

    ```
    intnacl corruptions runs/c10
    intnacl corruptions runs/c10 --only fog contrast
    intnacl corruptions runs/c10 --dataset cifar100 --protocol alf
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder, or a name of `intnacl.pretrained()`, such as digits-intnacl.
    dataset
        Data sets with images of the run's size; by default the run's own.
    only
        Only some of gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur,
        zoom_blur, snow, frost, fog, brightness, contrast, elastic_transform, pixelate and jpeg_compression.
    protocol
        The classifier: slf, alf or aff, as for `attack`; by default the run's own.
    out
        Folder for a copy of the run, to which measurements are written; by default RUN itself. Required if
        RUN is a name.
    root
        Data folder; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.runs.commands import corruptions_command

    corruptions_command(run, dataset, only, protocol, device, root, out)


def embed(
    run: Path,
    *,
    dataset: str | None = None,
    split: str = "train",
    out: Path | None = None,
    html: Annotated[bool, Parameter(negative=())] = False,
    images: int = 10_000,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Write a run's features of images to a file for other programs, and draw nearest neighbours.

    The images need no labels. `numpy.load(FILE)` holds `features` (images × features) and, if the data set
    has them, `names` (paths below the folder), `labels` and `classes`; a parquet file has a row per image. A
    PNG of the same name shows some images, each with its nearest neighbours by cosine. With --html, a page
    lays images out by their features, to explore with mouse, touch or keyboard. Features are stored in pieces
    as they are computed: memory does not grow with the number of images, and the same command resumes.

    **Examples**

    ```
    intnacl embed runs/mine   # the run's training images
    intnacl embed runs/mine --dataset folder:~/new --out new.npz
    intnacl embed runs/c100 --dataset cifar10 --split test
    intnacl embed runs/c100 --split test --html
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder, or a name of `intnacl.pretrained()`, such as digits-intnacl.
    dataset
        A data set with images of the run's size; by default the run's own. Images of folder:PATH,
        parquet:PATH and webdataset:PATH are resized to it.
    split
        train or test; a folder without train/ and test/ counts as train.
    out
        A .npz or .parquet file; by default RUN/features-DATASET-SPLIT.npz. Required if RUN is a name.
    html
        Also write a self-contained page beside the file.
    images
        The largest number of images on the page; of more images, an evenly spaced choice is shown.
    root
        Data folder; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.runs.commands import embed_command

    embed_command(run, dataset, split, out, device, root, html, images)


def export(run: Path, *, format: str = "safetensors", out: Path | None = None) -> None:
    """Export a run's encoder for other programs, with a model card that states protocol and results.

    **Examples**

    ```
    intnacl export runs/c100 --out c100-encoder     # intnacl.from_pretrained
    intnacl export runs/c100 --format torchvision   # torchvision's names
    intnacl export runs/c100 --format onnx          # checked against torch
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder, or a name of `intnacl.pretrained()`, such as digits-intnacl.
    format
        safetensors, torchvision, timm or onnx.
    out
        Folder to write to; by default RUN/export-FORMAT. Required if RUN is a name.
    """
    from intnacl.console import show
    from intnacl.runs.export import export_run

    show(f"written: {export_run(run, format, out)}")
