"""Fine-tuning of a run's encoder with labels, in a run folder of its own.

It is either AFF, the adversarial full fine-tuning of the RobustSSL benchmark, or fine-tuning on clean images
with a share of the labels, as in semi-supervised evaluations.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from intnacl.data.augmentations import AugmentConfig
from intnacl.data.datasets import absolute_root, local_name
from intnacl.errors import InputError
from intnacl.models.shipped import is_shipped
from intnacl.models.weights import load_encoder
from intnacl.runs.config import RunConfig, flatten, override
from intnacl.runs.folder import RunFolder, file_name
from intnacl.runs.measurements import benchmark_views
from intnacl.runs.opened import Run
from intnacl.training.finetune import FinetuneConfig
from intnacl.training.settings import TrainConfig

# The benchmark's AFF (`vanilla_finetuning.py`) for encoders with a single batch norm, such as DeACL's.
AFF = TrainConfig(
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    weight_decay=2e-4,
    decay_vectors=True,
    schedule="steps",
    epochs=25,
    batch_size=128,
    monitor_epochs=0,
)
# SimCLR's fine-tuning with few labels (Chen et al. 2020, appendix B.5): no weight decay, no warm-up, a rate
# of 0.05·B/256, 60 epochs for 1 % of the labels and 30 for 10 %. The cosine schedule is ours.
CLEAN = TrainConfig(optimizer="sgd", momentum=0.9, schedule="cosine", batch_size=128, monitor_epochs=0)
FEW = 0.1  # below this share of the labels, training takes 60 epochs


def share_of_labels(text: str) -> float:
    """Read "1%", "10%" or "all" as a share."""
    try:
        share = 1.0 if text == "all" else float(text.removesuffix("%")) / 100
        if not (text == "all" or text.endswith("%")) or not 0 < share <= 1:
            raise ValueError
    except ValueError:
        raise InputError(
            f"labels={text!r} is not a share of the labels: give a percentage, such as 1% or 10%, or all."
        ) from None
    return share


def finetuning_of(
    run: Run, dataset: str, changes: Mapping[str, Any] | None = None, *, labels: float = 1.0
) -> RunConfig:
    """Return the configuration of AFF of a run's encoder, with a share of the labels.

    `changes` are settings of `train` and `finetune` by their dotted names, and `seed`. Everything is measured
    as in the run, on the same split.
    """
    views = benchmark_views(run.config, run.image_size)
    return _finetuning(run, dataset, FinetuneConfig(labels=labels), views, AFF, changes)


def clean_finetuning_of(
    run: Run, dataset: str, labels: float, changes: Mapping[str, Any] | None = None
) -> RunConfig:
    """Return the configuration of fine-tuning a run's encoder on clean images with a share of the labels.

    Images are cropped and flipped as in the run, and keep their colours. The rest is as in `finetuning_of`.
    """
    views = replace(run.config.augment, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
    train = replace(CLEAN, epochs=60 if labels < FEW else 30)
    finetune = FinetuneConfig(labels=labels, beta=0.0, start="probe")
    return _finetuning(run, dataset, finetune, views, train, changes)


def _finetuning(
    run: Run,
    dataset: str,
    finetune: FinetuneConfig,
    views: AugmentConfig,
    train: TrainConfig,
    changes: Mapping[str, Any] | None,
) -> RunConfig:
    """Return the configuration of fine-tuning that starts from the run's encoder."""
    source = run.config
    machine = {name: getattr(source.train, name) for name in ("precision", "compile", "cuda_graph")}
    path = run.folder.path
    encoder = path.name if is_shipped(path) else absolute_root(str(path))
    config = replace(
        source,
        objective="finetune",
        recipe="custom",
        dataset=dataset,
        finetune=replace(finetune, encoder=encoder, encoder_sha256=run.encoder_sha256),
        augment=views,
        train=replace(train, **machine),
        encoder=replace(source.encoder, pretrained=False),
        evaluation=replace(source.evaluation, transfer=()),
    )
    config = override(config, changes or {})
    count = max(1, round(config.finetune.labels * len(run.images.split(dataset, "train"))))
    return override(config, {"train.batch_size": min(config.train.batch_size, count)})


def finetuned_folder(run: Run, config: RunConfig) -> RunFolder:
    """Return RUN-aff or RUN-labels-1percent, beside the run; for another data set, -DATASET is appended."""
    run.folder.check_writable("give --out FOLDER.")
    kind = "aff"
    if not config.finetune.beta:
        share = config.finetune.labels
        kind = "labels-all" if share == 1 else f"labels-{100 * share:g}percent"
    other = "" if config.dataset == run.config.dataset else f"-{file_name(local_name(config.dataset))}"
    return RunFolder(Path(f"{str(run.folder).rstrip('/')}-{kind}{other}"))


def shared_with(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that fine-tuning on clusters takes from the run whose encoder it starts from.

    They are those of the images, the encoder and the measurements, so that both runs can be compared.
    """
    path = given.get("finetune.encoder")
    if path is None:
        raise InputError(
            "finetune.encoder is not given: name the run whose encoder is fine-tuned, --set "
            "finetune.encoder=RUN."
        )
    folder = RunFolder(str(path))
    begun = dict(flatten(asdict(folder.read_config())))
    folder.require_encoder()
    parts = ("encoder.", "probe.", "alf.", "evaluation.")
    names = ("dataset", "root", "size", "stream", "holdout", "seed", "augment.flip_p")
    shared = {key: value for key, value in begun.items() if key in names or key.startswith(parts)}
    shared["encoder.pretrained"] = False
    return shared | {"finetune.encoder_sha256": load_encoder(folder.encoder).sha256}
