"""`intnacl probe`, `knn`, `attack` and `export`: what is done with a trained run."""

from pathlib import Path
from typing import Annotated

from intnacl.flags import MANY


def probe(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    protocol: str = "run",
    epochs: int | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Train a linear layer on a run's frozen features: its own data set, or others (transfer).

    The last epoch counts, on all test pictures. A change of the encoder's weights or batch norm statistics is
    an error. What is measured is kept below RUN/parts, and not measured twice.

    **Examples**

    ```
    intnacl probe runs/c100
    intnacl probe runs/c100 --dataset cifar100 cifar10
    intnacl probe runs/c100 --protocol quick   # L-BFGS, no epochs of Adam
    intnacl probe runs/c100 --protocol clae    # raw features at rate 3e-4
    intnacl probe runs/c100 --protocol hcl     # augmented, batch norm trains
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    dataset
        Data sets with pictures of the run's size; the run's own by default.
    protocol
        run (the settings of the run's configuration), quick, clae or hcl.
    epochs
        Passes over the features, instead of the protocol's.
    root
        Folder of the data sets; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.measure.commands import probe_command

    probe_command(run, dataset, protocol, epochs, device, root)


def knn(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    k: int | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Classify a run's frozen features by their weighted nearest neighbours: nothing is trained.

    **Examples**

    ```
    intnacl knn runs/c100
    intnacl knn runs/c100 --dataset cifar10 --k 20
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    dataset
        Data sets with pictures of the run's size; the run's own by default.
    k
        Neighbours; by default 200, or the pictures of a class where they are fewer.
    root
        Folder of the data sets; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.measure.commands import knn_command

    knn_command(run, dataset, k, device, root)


def attack(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    eps: Annotated[tuple[float, ...], MANY] = (),
    attacks: Annotated[tuple[str, ...], MANY] = ("fgsm", "pgd", "pgd_tuned"),
    images: int | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Attack a classifier in [0, 1] pixels, judged in float32: accuracy over eps, worst case, pictures.

    **Examples**

    ```
    intnacl attack runs/c100               # eps 0.002 … 0.032 and 8/255
    intnacl attack runs/c100 --eps 0.002 0.004 --attacks fgsm pgd
    intnacl attack runs/c100 --eps 0.0314 --attacks autoattack --images 1000
    intnacl attack runs/c100 --dataset cifar10
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder; it is probed first where it has not been.
    dataset
        Data sets with pictures of the run's size; the run's own by default.
    eps
        Radii of the ball, in pixels of [0, 1].
    attacks
        fgsm, pgd (the paper's), pgd_tuned (step eps/4, 40 steps) and autoattack.
    images
        Attack a fixed random selection of so many test pictures; all by default.
    root
        Folder of the data sets; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.measure.commands import attack_command

    attack_command(run, dataset, eps, attacks, images, device, root)


def export(run: Path, *, format: str = "safetensors", out: Path | None = None) -> None:
    """Write a run's encoder for other programs, with a model card that tells protocol and figures.

    **Examples**

    ```
    intnacl export runs/c100 --out c100-encoder     # intnacl.from_pretrained
    intnacl export runs/c100 --format torchvision   # torchvision's names
    intnacl export runs/c100 --format onnx          # checked against torch
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    format
        safetensors, torchvision, timm or onnx.
    out
        Folder to write to; by default RUN/export-FORMAT.
    """
    from intnacl.export import export_run

    print(f"written: {export_run(run, format, out)}")
