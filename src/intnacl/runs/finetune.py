"""Fine-tuning of a run's encoder with labels, in a run folder of its own.

AFF, the adversarial full fine-tuning of the RobustSSL benchmark, is one of its settings; a share of the
labels is another.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from intnacl.data.datasets import absolute_root, local_name
from intnacl.errors import InputError
from intnacl.models.weights import load_encoder
from intnacl.runs.config import RunConfig, flatten, override
from intnacl.runs.folder import RunFolder, file_name
from intnacl.runs.measurements import benchmark_views
from intnacl.runs.opened import Run
from intnacl.training.finetune import FinetuneConfig
from intnacl.training.settings import TrainConfig

# Of the benchmark's AFF (`vanilla_finetuning.py`), for encoders with a single batch norm, as DeACL's.
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


def finetuning_of(
    run: Run, dataset: str, changes: Mapping[str, Any] | None = None, *, labels: float = 1.0
) -> RunConfig:
    """Return the configuration that fine-tunes a run's encoder on a share of a data set's labels.

    `changes` are settings of `train` and `finetune` by their dotted names. Everything is measured as in the
    run, on the same split.
    """
    of = run.config
    machine = {name: getattr(of.train, name) for name in ("precision", "compile", "cuda_graph")}
    begun = FinetuneConfig(
        encoder=absolute_root(str(run.folder)), encoder_sha256=run.encoder_sha256, labels=labels
    )
    config = replace(
        of,
        objective="finetune",
        recipe="custom",
        dataset=dataset,
        finetune=begun,
        augment=benchmark_views(of, run.image_size),
        train=replace(AFF, **machine),
        encoder=replace(of.encoder, pretrained=False),
        evaluation=replace(of.evaluation, transfer=()),
    )
    config = override(config, changes or {})
    count = max(1, round(config.finetune.labels * len(run.images.split(dataset, "train"))))
    return override(config, {"train.batch_size": min(config.train.batch_size, count)})


def finetuned_folder(run: Run, dataset: str) -> RunFolder:
    """Return RUN-aff beside the run, or RUN-aff-DATASET for another data set than its own."""
    mark = "" if dataset == run.config.dataset else f"-{file_name(local_name(dataset))}"
    return RunFolder(Path(f"{str(run.folder).rstrip('/')}-aff{mark}"))


def shared_with(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what fine-tuning on clusters shares with the run whose encoder it begins with.

    These are the images, the encoder, and all that is measured: both are compared.
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
