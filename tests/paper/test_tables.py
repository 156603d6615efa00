"""Tables, users' grids, and mistakes in them."""

from pathlib import Path

import pytest

from intnacl.paper.plan import make_plan
from intnacl.paper.tables import Column, Row, Table, read_grid
from intnacl.runs.resolve import resolve
from mistakes import must_refuse

ROW = '[[tables.rows]]\nlabel = "r"\n[[tables.columns]]\nlabel = "c"\n'
TABLE = f'[[tables]]\nname = "t"\n{ROW}'


def read(folder: Path, text: str) -> tuple[Table, ...]:
    (folder / "g.toml").write_text(text)
    return read_grid(folder / "g.toml")


def test_later_settings_override_earlier_ones():
    row, column = Row(label="r", settings={"b": 2, "c": 2}), Column(label="c", settings={"c": 3})
    settings = {"a": 1, "b": 1, "c": 1}
    table = Table(name="t", title="t", settings=settings, rows=(row,), columns=(column,))
    assert list(table.cells()) == [(0, 0, {"a": 1, "b": 2, "c": 3})]


@pytest.mark.parametrize(("eps", "radius"), [('"8/255"', 8 / 255), ("0.02", 0.02)])
def test_a_column_has_a_radius_a_data_set_and_may_be_optional(tmp_path, monkeypatch, eps, radius):
    monkeypatch.chdir(tmp_path)
    (table,) = read(
        tmp_path, f'{TABLE}metric = "autoattack"\noptional = true\ndataset = "npz:x.npz"\neps = {eps}\n'
    )
    (column,) = table.columns
    assert (column.eps, column.dataset) == (radius, f"npz:{tmp_path}/x.npz")
    assert column.optional
    assert "autoattack" not in make_plan([table], [0]).jobs[0].config.evaluation.attacks


def test_the_preset_of_a_row_is_a_whole_loss(tmp_path):
    """It replaces the table's settings that presets decide, and keeps other settings."""
    (table,) = read(tmp_path, """
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
""")  # fmt: skip
    losses = {(i, j): resolve(settings).loss for i, j, settings in table.cells()}
    for (row, column), preset in {(0, 0): "intnacl", (1, 0): "simclr", (0, 1): "adv", (2, 1): "adv"}.items():
        assert losses[row, column] == resolve({"loss.temperature": 0.3}, preset=preset, recipe="digits").loss
    assert (losses[2, 0].negatives, losses[2, 0].num_positives, losses[2, 0].alpha) == ("g2", 2, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold \[\[tables\]\]"),
        ("x = 1", r"must hold \[\[tables\]\]. Unknown: x"),
        ("[[tables]", "is not TOML"),
        ("[[tables]]\n" + ROW, "table 1 has no name"),
        ('[[tables]]\nname = "t"\nfigur = "curves"\n' + ROW, "key='figur' is unknown; did you mean 'figure'"),
        ('[[tables]]\nname = 3\n' + ROW, "name=3 has the wrong type"),
        ('[[tables]]\nname = "t"\nrows = [1]', "rows 1: 1 is not a TOML table"),
        ('[[tables]]\nname = "t"', "'t' needs at least one row"),
        ('[[tables]]\nname = " "\n' + ROW, "a name that is not empty"),
        ('[[tables]]\nname = "t"\nfigure = "curves"\n' + ROW, "every column of a curves figure needs an x"),
        ('[[tables]]\nname = "t"\nfigure = "scatter"\n' + ROW, "but it has only one"),
        ('[[tables]]\nname = "t"\nfigure = "scatter"\n' + ROW + 'panel = "q"', "panel 'q' has only one"),
        (TABLE + "x = inf", "column 'c': x=inf is not a position"),
        (TABLE + 'metric = "acc"', "metric of column 'c'='acc' is unknown"),
        (TABLE + 'preset = "simcl"', "did you mean 'simclr'"),
        (TABLE + "optional = 1", "optional=1 has the wrong type"),
        (TABLE + "eps = true", "eps=True has the wrong type"),
        (TABLE + "eps = 0.1", "eps=0.1 needs an attack, but the metric is clean"),
        (TABLE + 'eps = "8 of 255"', "eps='8 of 255' is not a number"),
        (TABLE + TABLE, "table names must differ"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_named(tmp_path, text, message):
    must_refuse(read, tmp_path, text, message)


def test_a_missing_file_and_an_unknown_setting_are_named(tmp_path):
    must_refuse(read_grid, tmp_path / "g.toml", r"g.toml: No such file")
    tables = read(tmp_path, f'[[tables]]\nname = "t"\nsettings = {{"los.lam" = 1}}\n{ROW}')
    must_refuse(make_plan, tables, [0], r"setting='los.lam' is unknown; did you mean 'loss.lam'")


def test_the_documented_grid_is_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    assert len(make_plan(read(tmp_path, page.split("```toml\n")[1].split("```")[0]), [0]).jobs) == 4
