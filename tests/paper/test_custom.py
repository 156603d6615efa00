"""Grids of one's own, and mistakes in them."""

from pathlib import Path

import pytest
from grids import grid_file

from intnacl.errors import InputError
from intnacl.paper.custom import read_grid
from intnacl.paper.plan import make_plan
from intnacl.runs.config import resolve


def test_a_grid_is_read(tmp_path: Path) -> None:
    (table,) = read_grid(grid_file(tmp_path / "g.toml"))
    assert (table.name, table.title, table.figure) == ("mine", "My own grid", "curves")
    first, *_, last = make_plan([table], [0]).jobs
    assert (first.config.loss.negatives, first.config.train.epochs) == ("g0", 1)
    assert (last.config.loss.negatives, last.config.train.epochs) == ("g1", 2)
    assert last.config.evaluation.eps == (0.01,)


def test_a_rows_preset_is_a_whole_loss(tmp_path: Path) -> None:
    """What presets decide is not taken from the table, but other settings are."""
    text = """
[[tables]]
name = "t"
preset = "intnacl"
settings = {dataset = "digits", "loss.temperature" = 0.3}
[[tables.rows]]
label = "the table's"
[[tables.rows]]
label = "SimCLR"
preset = "simclr"
[[tables.rows]]
label = "hard"
preset = "debiased_hardneg"
settings = {"loss.num_positives" = 2}
[[tables.columns]]
label = "clean"
[[tables.columns]]
label = "clean, Adv"
preset = "adv"
"""
    (tmp_path / "g.toml").write_text(text)
    losses = {(i, j): resolve(settings).loss for i, j, settings in read_grid(tmp_path / "g.toml")[0].cells()}
    for (row, column), preset in {(0, 0): "intnacl", (1, 0): "simclr", (0, 1): "adv", (2, 1): "adv"}.items():
        assert losses[row, column] == resolve({"loss.temperature": 0.3}, preset=preset, recipe="digits").loss
    assert (losses[2, 0].negatives, losses[2, 0].num_positives, losses[2, 0].alpha) == ("g2", 2, 0.0)


@pytest.mark.parametrize(("eps", "radius"), [('"8/255"', 8 / 255), ("0.02", 0.02)])
def test_a_radius_may_be_a_fraction(tmp_path: Path, eps: str, radius: float) -> None:
    (tmp_path / "g.toml").write_text(f'[[tables]]\nname = "t"\n{ROW}metric = "fgsm"\neps = {eps}\n')
    assert read_grid(tmp_path / "g.toml")[0].columns[0].eps == radius


def test_a_column_may_be_optional(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(f'[[tables]]\nname = "t"\n{ROW}metric = "autoattack"\noptional = true\n')
    (table,) = read_grid(tmp_path / "g.toml")
    assert table.columns[0].optional
    assert "autoattack" not in make_plan([table], [0]).jobs[0].config.evaluation.attacks


ROW = '[[tables.rows]]\nlabel = "r"\n[[tables.columns]]\nlabel = "c"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold \[\[tables\]\]"),
        ("x = 1", r"must hold \[\[tables\]\]. x is not known"),
        ("[[tables]", "is no TOML"),
        ("[[tables]]\n" + ROW, "table 1 has no name"),
        ('[[tables]]\nname = "t"\nfigur = "curves"\n' + ROW, "key='figur' is unknown; did you mean 'figure'"),
        ('[[tables]]\nname = 3\n' + ROW, "name=3 is of the wrong kind"),
        ('[[tables]]\nname = "t"\nrows = [1]', "rows 1: 1 is no table of TOML"),
        ('[[tables]]\nname = "t"', "needs at least one row"),
        ('[[tables]]\nname = "t"\n' + ROW + 'metric = "acc"', "metric of column 'c'='acc' is unknown"),
        ('[[tables]]\nname = "t"\n' + ROW + 'preset = "simcl"', "did you mean 'simclr'"),
        ('[[tables]]\nname = "t"\n' + ROW + "optional = 1", "optional=1 is of the wrong kind"),
        ('[[tables]]\nname = "t"\n' + ROW + "eps = true", "eps=True is of the wrong kind"),
        ('[[tables]]\nname = "t"\n' + ROW + "eps = 0.1", "eps=0.1 is an attack's, but its metric is clean"),
        ('[[tables]]\nname = "t"\n' + ROW + 'eps = "8 of 255"', "eps='8 of 255' is not a number"),
        (f'[[tables]]\nname = "t"\n{ROW}[[tables]]\nname = "t"\n{ROW}', "a name of its own"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "g.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_grid(tmp_path / "g.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"g.toml: No such file"):
        read_grid(tmp_path / "g.toml")


def test_an_unknown_setting_is_named_when_planning(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(f'[[tables]]\nname = "t"\nsettings = {{"los.lam" = 1}}\n{ROW}')
    with pytest.raises(InputError, match=r"setting='los.lam' is unknown; did you mean 'loss.lam'"):
        make_plan(read_grid(tmp_path / "g.toml"), [0])


def test_the_documented_grid_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    (tmp_path / "g.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    (table,) = read_grid(tmp_path / "g.toml")
    assert len(make_plan([table], [0]).jobs) == 4
