"""Write docs/settings.md, every setting with its default and meaning: `python docs/draw_settings.py`.

Names and defaults come from the configuration, meanings from the docstring below each field.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from intnacl.runs.config import FLAGS, RunConfig
from intnacl.runs.resolve import RECIPES

PAGE = Path(__file__).parent / "settings.md"
OPENING = """# Settings

This page lists everything that a run depends on, by dotted name. Change settings on the command line of
`run`, `pretrain`, `supervised` or `reproduce`, for example with
`--set loss.temperature=0.2 encoder.name=resnet34`. The command `probe` takes the settings of `probe`, with
`--protocol alf` also those of `alf`, and with `--protocol aff` those of `finetune` and `train`, which are the
settings of the command `finetune`, too. `run`, `pretrain` and `supervised` take a TOML file as `--config`:

```toml
dataset = "folder:~/images"
size = 64
preset = "intnacl"
augment = "simclr"          # a name, such as crop_flip or none, or a table [augment] of settings

[train]
epochs = 200
batch_size = 128
```

Write lists with commas: `--set evaluation.eps=0.002,8/255`. Later values override earlier ones, in this
order: the default, the recipe of the data set, the file, `--preset`, flags and `--set`. A preset changes
settings of `loss` ([losses.md](losses.md#special-cases) lists them), and a recipe those in the last column.
Recipes set `loss.weight=relative`, so `--preset intnacl` differs in one setting from
`IntNaClLoss.preset("intnacl")` ([why](losses.md#one-preset-in-python-and-on-the-command-line)).

CIFAR has the recipe `paper`. Your own images ([data.md](data.md)) have `own`, which trains in the same way
and attacks at 8/255. `--recipe strong` and `--recipe knn90` are described in [strong.md](strong.md).
`--recipe robust` ([robust.md](robust.md)) overrides parts of the data set's recipe; on digits its values are
those of `robust_digits`. A recipe's learning rate is for its own optimiser (adam's also for adamw). The run's
`config.json` holds the final values.
"""


def meanings(owner: type) -> dict[str, str]:
    """Return field -> the docstring below it, base classes first."""
    found: dict[str, str] = {}
    for cls in reversed([c for c in owner.__mro__ if is_dataclass(c)]):
        body = ast.parse(inspect.getsource(cls)).body[0].body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(text.value.value.split())
    return found


def as_text(value: Any) -> str:
    """Return a value in the form that `--set` accepts."""
    if isinstance(value, tuple):
        return ",".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in value) or "(none)"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def in_recipes(name: str) -> str:
    """Return the values of a setting in the recipes that change it."""
    values: dict[str, list[str]] = {}
    for recipe, changes in RECIPES.items():
        if name in changes:
            values.setdefault(as_text(changes[name]), []).append(recipe)
    return "; ".join(f"{value} ({', '.join(recipes)})" for value, recipes in values.items())


def rows(owner: Any, prefix: str) -> Iterator[str]:
    """Yield a line of the table for each setting, without nested parts."""
    texts = meanings(type(owner))
    for field in fields(owner):
        value = getattr(owner, field.name)
        if not is_dataclass(value):
            name = f"{prefix}{field.name}"
            yield f"| `{name}` | {as_text(value)} | {texts[field.name]} | {in_recipes(name)} |"


def page() -> str:
    """Return the whole page: the run's own settings, then those of each part."""
    config = RunConfig()
    parts = {f.name: getattr(config, f.name) for f in fields(config) if is_dataclass(getattr(config, f.name))}
    names = ", ".join(f"`--{name.replace('_', '-')}`" for name in (*FLAGS.values(), "augment"))
    flags = f"Everyday settings have their own flags, which are the same for every command: {names}."
    lines = [OPENING, *textwrap.wrap(flags, 110, break_on_hyphens=False), ""]
    for name, owner in {"": config, **parts}.items():
        heading = f"## `{name}`\n\n{inspect.getdoc(type(owner))}" if name else "## The run"
        lines += [heading, "", "| setting | default | meaning | in a recipe |", "|---|---|---|---|"]
        lines += [*rows(owner, f"{name}." if name else ""), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
