"""`intnacl finetune` and `predict`: fine-tune a run's encoder with labels, and classify pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import Parameter

from intnacl.cli.flags import MANY, pairs
from intnacl.errors import InputError


def finetune(
    run: Path,
    *,
    labels: str = "all",
    dataset: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    set_: Annotated[tuple[str, ...], MANY, Parameter(name="--set")] = (),
    out: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
    max_minutes: float | None = None,
) -> None:
    """Train a run's encoder together with a linear layer on a share of the labels, in a new run folder.

    For comparison, a linear probe is fitted on the run's frozen encoder with the same labels: result.json and
    report.html hold both accuracies, which semi-supervised papers report. The same command resumes.

    **Examples**

    ```
    intnacl finetune runs/c100 --labels 1%
    intnacl finetune runs/c100 --labels 10% --seed 1 --out runs/c100-ten
    intnacl finetune runs/mine --labels all --epochs 50 --set train.lr=0.01
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    labels
        Share of the training images whose labels are used, the same for every class: 1%, 10%, … or all.
    dataset
        A labelled data set with images of the run's size; by default the run's own.
    epochs
        Passes over the labelled images; by default 60 for shares below 10 %, else 30.
    batch_size
        Images per batch; by default 128, or all labelled images if they are fewer.
    lr
        Learning rate; by default 0.05 for 256 images per batch, and in proportion to the batch size.
    seed
        Random seed for the choice of labels, and for batches and views; by default the run's.
    set_
        Any setting of finetune and train in docs/settings.md by its dotted name.
    out
        Folder to write to; by default RUN-labels-1percent, RUN-labels-all …
    root
        Data folder; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    max_minutes
        Save and stop after this many minutes; the same command resumes.
    """
    given = {"train.epochs": epochs, "train.batch_size": batch_size, "train.lr": lr, "seed": seed}
    changes = {key: value for key, value in given.items() if value is not None} | pairs(set_)
    named = [dataset] if dataset else []
    finetune_and_measure(run, named, changes, out, root, device, max_minutes, labels=labels)


def predict(
    run: Path,
    folder: Path,
    *,
    dataset: str | None = None,
    out: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Classify the pictures below a folder, and write file, class and confidence of each to a CSV file.

    The classifier is the run's linear probe, or the layer of a fine-tuned run. Folders may have any layout
    and any number of pictures. Each picture is cropped to its central square and resized, as in the run.
    Confidence is the softmax probability of the class, from 0 to 1. Broken pictures get no row, and are
    listed at the end.

    **Examples**

    ```
    intnacl predict runs/mine ~/new-pictures
    intnacl predict runs/mine-labels-10percent ~/new-pictures --out new.csv
    intnacl predict runs/c100 ~/pictures --dataset cifar10   # its classes
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    folder
        A folder of pictures, or one picture.
    dataset
        The data set whose classes are predicted; by default the run's own.
    out
        A .csv file; by default in RUN, named after the folder.
    root
        Data folder, only needed if the linear layer has not been fitted yet; by default the run's own.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.console import show
    from intnacl.runs.opened import open_run
    from intnacl.runs.predict import predict as predict_folder

    found = predict_folder(open_run(run, device=device, root=root), folder, dataset=dataset, out=out)
    show(f"{found.images:,} pictures classified, {len(found.broken):,} left out as broken")
    for name, reason in found.broken.items():
        show(f"  {name}: {reason}")
    show(f"written: {found.out}")


def finetune_and_measure(
    path: Path,
    datasets: Sequence[str],
    changes: Mapping[str, object],
    out: Path | None,
    root: Path | None,
    device: str,
    max_minutes: float | None,
    *,
    labels: str | None = None,
) -> NoReturn:
    """Fine-tune a run's encoder and measure it, in a new run folder.

    Without `labels`, fine-tuning is adversarial, with all labels; otherwise on clean images with that share.
    """
    from intnacl.cli.train import end
    from intnacl.console import show
    from intnacl.errors import check_choice
    from intnacl.runs.config import SETTINGS
    from intnacl.runs.finetune import clean_finetuning_of, finetuned_folder, finetuning_of, share_of_labels
    from intnacl.runs.folder import RunFolder
    from intnacl.runs.opened import open_run
    from intnacl.runs.page import print_result
    from intnacl.runs.stages import train_and_measure
    from intnacl.training.ranks import ranks
    from intnacl.training.stop import Stop

    if len(datasets) > 1:
        raise InputError(
            f"--dataset {' '.join(datasets)}: --protocol aff writes one run, so give only one data set."
        )
    for key in changes.keys() - {"seed"}:
        check_choice("setting", key, [name for name in SETTINGS if name.startswith(("finetune.", "train."))])
    changes = changes if root is None else {**changes, "root": str(root.absolute())}
    share = None if labels is None else share_of_labels(labels)
    with ranks(device) as here, Stop(max_minutes) as stop:
        run = open_run(path, device=here.device, root=root)
        (name,) = run.named(datasets)
        if share is None:
            config = finetuning_of(run, name, changes)
        else:
            config = clean_finetuning_of(run, name, share, changes)
        folder = RunFolder(out) if out else finetuned_folder(run, config)
        reason = train_and_measure(config, folder, here, stop, show)
        if reason is None and here.main:
            print_result(folder)
    end(reason, here)
