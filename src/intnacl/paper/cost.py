"""Estimated GPU time, from costs that were measured on one H200 (bf16, CUDA graphs).

Pretraining: 5.5 ms a step of 256 pairs of 32×32 images with ResNet-18, in proportion to the views of an
image and to its area; an adversarial view costs about as much as two. The probe with feature extraction:
9 s for 1000 epochs on 50,000 images. Attacks: 20 s for the 80 passes of FGSM at five radii and both PGDs
over 10,000 images, of which an attack goes on with those that still stand.
"""

from intnacl.attacks.named import named_attack
from intnacl.paper.plan import Job
from intnacl.runs.config import RunConfig

STEP_S = 5.5e-3  # 256 images, two views of each
VIEW_S = STEP_S / 2 / 256  # one view of a 32×32 image, forward and backward
PROBE_S = 9 / 1000 / 50_000  # one image's features in one epoch
ATTACK_S = 20 / 80 / 10_000  # one image, forward and backward
AUTOATTACK = 1000  # passes, about
START_S = 40.0  # compiling
# Training images, test images, side over 32.
SIZES = {"cifar10": (50_000, 10_000, 1.0), "cifar100": (50_000, 10_000, 1.0),
         "tinyimagenet": (100_000, 10_000, 2.0), "digits": (1442, 355, 0.25)}  # fmt: skip


def views(config: RunConfig) -> int:
    """Views of an image in a step, an adversarial one counted twice."""
    if config.objective == "supervised":
        return 1
    extra = config.loss.num_positives - 1
    return 2 + extra + (2 if config.loss.alpha > 0 else 0)


def seconds(config: RunConfig, epochs_before: int = 0) -> float | None:
    """Estimated seconds of a run on one H200; None where the data set's size is unknown."""
    if config.dataset not in SIZES:
        return None
    images, _, side = SIZES[config.dataset]
    batches = images // config.train.batch_size
    trained = (config.train.epochs - epochs_before) * batches * config.train.batch_size
    total = START_S + trained * views(config) * VIEW_S * side**2
    for dataset in (config.dataset, *config.evaluation.transfer):
        images, tested, side = SIZES.get(dataset, SIZES[config.dataset])
        total += config.probe.epochs * images * PROBE_S if config.probe.solver == "adam" else 0.0
        attacks = [named_attack(name, eps) for eps, names in config.evaluation.rounds for name in names]
        passes = sum(attack.passes or AUTOATTACK for attack in attacks)
        total += min(tested, config.evaluation.images or tested) * passes * ATTACK_S * side**2
    return total


def plan_seconds(jobs: tuple[Job, ...]) -> dict[str, float]:
    """Estimated seconds by run; a run that goes on from another only pays for what it adds."""
    epochs = {job.name: job.config.train.epochs for job in jobs}
    costs = {}
    for job in jobs:
        estimate = seconds(job.config, epochs[job.parent] if job.parent else 0)
        if estimate is not None:
            costs[job.name] = estimate
    return costs
