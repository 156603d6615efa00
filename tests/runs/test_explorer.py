"""The explorer page: the right pictures, labels and neighbours; mouse, touch and keys in a real browser."""

import base64
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from browser import Browser
from intnacl.data import Dataset, load
from intnacl.errors import InputError
from intnacl.evaluation.projection import nearest_neighbours
from intnacl.runs.commands import embed_command
from intnacl.runs.explorer import NEIGHBOURS, render_explorer, write_explorer
from tiny_run import measured, trained

SIDE = 32


def data_of(text: str) -> dict[str, Any]:
    return json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    )


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<u2").astype(np.int64)


def pictures(data: dict[str, Any]) -> np.ndarray:
    """Return the pictures of an atlas, (N, S, S, 3)."""
    with Image.open(io.BytesIO(base64.b64decode(data["atlas"].partition(",")[2]))) as atlas:
        pixels = np.asarray(atlas.convert("RGB"))
    side, columns = data["side"], data["columns"]
    rows = len(pixels) // side
    grid = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return grid.reshape(rows * columns, side, side, 3)[: data["count"]]


def test_the_page_holds_every_image_with_its_class_prediction_and_neighbours(tmp_path, capsys):
    run = measured(tmp_path)
    embed_command(run.folder, None, "test", None, "cpu", html=True)
    page = run.folder / "features-digits-test.html"
    assert f"written: {page}" in capsys.readouterr().out
    data, test = data_of(page.read_text()), load("digits", "test")
    assert data["count"] == len(test)
    np.testing.assert_array_equal(pictures(data), test.images.permute(0, 2, 3, 1).numpy())
    assert unpacked(data["label"]["of"]).tolist() == test.labels.tolist()
    assert data["label"]["names"] == data["prediction"]["names"] == list(test.classes)
    with torch.inference_mode():
        predicted = run.classifier("digits")(test.images / 255).argmax(1)
    assert unpacked(data["prediction"]["of"]).tolist() == predicted.tolist()
    near = nearest_neighbours(run.embed(test), NEIGHBOURS)
    assert unpacked(data["near"]).reshape(len(test), -1).tolist() == near.index_NK.tolist()
    np.testing.assert_allclose(unpacked(data["cosines"]) / 65535, near.cosine_NK.flatten(), atol=1e-4)
    places = unpacked(data["places"]).reshape(-1, 2) / 65535
    assert max(places.max(axis=0) - places.min(axis=0)) == pytest.approx(1, abs=1e-3)
    assert not re.search(r'(src|href)="', page.read_text())


def test_an_evenly_spaced_choice_of_many_images_is_shown(tmp_path):
    run, test = trained(tmp_path), load("digits", "test")
    write_explorer(run, test, [run.embed(test)], tmp_path / "some.html", most=20)
    text = (tmp_path / "some.html").read_text()
    assert f"20 of {len(test)} images" in text
    data = data_of(text)
    assert data["numbers"] == test.spread(20).tolist()
    assert data["prediction"] is None  # nothing was probed
    np.testing.assert_array_equal(pictures(data)[7], test.images[data["numbers"][7]].permute(1, 2, 0))
    for most in (0, 2**16 + 1):
        with pytest.raises(InputError, match="images="):
            embed_command(Path("nowhere"), None, "test", None, "cpu", html=True, most=most)


def test_unlabelled_images_have_names_and_a_single_one_has_no_neighbours(tmp_path):
    evil = "</script><b>.png"
    run, folder = measured(tmp_path), tmp_path / "new"
    folder.mkdir()
    for name in ("one.png", evil.replace("/", "∕")):
        Image.new("RGB", (8, 8), "red").save(folder / name)
    images = load(f"folder:{folder}", "train", size=8)
    text = render_explorer(run, images, run.embed(images)[:2], torch.arange(2))
    data = data_of(text)
    assert sorted(data["names"]) == sorted(images.names)
    assert "<b>" not in text
    assert data["label"] is None
    assert data["prediction"]["names"] == list(load("digits", "test").classes)  # of the run's own classifier
    alone = data_of(render_explorer(run, images, run.embed(images)[:1], torch.arange(1)))
    assert (alone["count"], alone["neighbours"], alone["near"]) == (1, 0, "")


def smooth(count: int, side: int) -> torch.Tensor:
    coarse = torch.randint(256, (count, 3, 4, 4)).float()
    return torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 255).to(torch.uint8)


def test_large_pictures_are_shrunk_and_do_not_bleed_into_each_other_in_a_jpeg(tmp_path):
    images = smooth(64, 540)
    dataset = Dataset(name="made up", split="train", images=images, labels=None, classes=(), names=())
    data = data_of(render_explorer(trained(tmp_path), dataset, torch.randn(64, 5), torch.arange(64)))
    assert data["atlas"].startswith("data:image/jpeg")
    assert data["side"] % 8 == 0
    assert data["side"] * data["columns"] <= 4096
    small = torch.nn.functional.interpolate(
        images.float(), size=data["side"], mode="bilinear", antialias=True
    )
    difference = pictures(data) - small.permute(0, 2, 3, 1).numpy()
    assert np.sqrt((difference**2).mean(axis=(1, 2, 3))).max() < 4


# ---- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    run, out = measured(folder), folder / "explorer.html"
    test = load("digits", "test")
    write_explorer(run, test, [run.embed(test)], out)
    return out


def opened(browser: Browser, page: Path, width: int, dark: bool = False) -> None:
    browser.open(page, width, dark)
    browser.js("ready")
    browser.settle()


def place_of(browser: Browser, image: int) -> tuple[float, float]:
    left, top = browser.js("[plane.getBoundingClientRect().x, plane.getBoundingClientRect().y]")
    return left + browser.js(f"screenX({image})"), top + browser.js(f"screenY({image})")


VIEW = "({ ...view })"
PICTURES = "[...document.querySelectorAll('#near button')].map((one) => one.ariaLabel)"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 400])
def test_the_mouse_shows_selects_moves_and_zooms(browser, page, width):
    opened(browser, page, width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    test, data = load("digits", "test"), data_of(page.read_text())
    x, y = place_of(browser, 5)
    browser.mouse("moved", x, y)
    found = browser.js("state.hover")
    label = test.classes[int(test.labels[found])]
    said = browser.js("hint.innerText").split("\n")
    assert said[0] == f"no. {found}"
    assert said[1] == f"class: {label}"
    assert said[2].startswith("prediction: ")
    picture = "hint.querySelector('canvas').getContext('2d').getImageData(0, 0, 160, 160).data"
    shown = np.array(browser.js(f"[...{picture}]")).reshape(160, 160, 4)
    pixels = shown[10::20, 10::20, :3]  # 8 pixels a side, 20 for each
    np.testing.assert_allclose(pixels, test.images[found].permute(1, 2, 0), atol=1)
    box = browser.js("(() => { const b = hint.getBoundingClientRect(); return [b.left, b.right] })()")
    assert 0 <= box[0] <= box[1] <= width
    browser.click(x, y)
    assert browser.js("state.selected") == found
    near = unpacked(data["near"]).reshape(len(test), -1)[found].tolist()
    told = browser.js(PICTURES)
    assert [text.split(":")[1].split(",")[0] for text in told] == [f" no. {i}" for i in near]
    browser.js("document.querySelector('#near button').scrollIntoView({ block: 'center' })")
    browser.js("document.querySelector('#near button').click()")
    assert browser.js("state.selected") == near[0]
    assert browser.js("document.activeElement.parentElement.parentElement.id") == "near"
    browser.js("scrollTo(0, 0)")
    before = browser.js(VIEW)
    browser.mouse("pressed", 150, 300, button="left", clickCount=1)
    for step in range(1, 6):
        browser.mouse("moved", 150 + 10 * step, 300 + 4 * step, button="left", buttons=1)
    browser.mouse("released", 200, 320, button="left", clickCount=1)
    after = browser.js(VIEW)
    assert (before["x"] - after["x"]) * after["scale"] == pytest.approx(50, abs=0.5)
    assert (before["y"] - after["y"]) * after["scale"] == pytest.approx(20, abs=0.5)
    assert browser.js("state.selected") == near[0], "dragging is not a click"
    fixed = "[(180 - state.width / 2) / view.scale + view.x, (150 - state.height / 2) / view.scale + view.y]"
    held, top = browser.js(fixed), browser.js("plane.getBoundingClientRect().y")
    browser.mouse("wheel", 180, 150 + top, deltaX=0, deltaY=-300)
    browser.settle()
    assert browser.js("view.scale") > 1.3 * after["scale"]
    assert browser.js(fixed) == pytest.approx(held, abs=2e-3)
    assert browser.complaints == []


@pytest.mark.slow
def test_two_fingers_zoom(browser, page):
    opened(browser, page, 400)
    before = browser.js(VIEW)
    for kind, spread in (("touchStart", 20), ("touchMove", 40), ("touchMove", 60)):
        points = [{"x": 200 - spread, "y": 300, "id": 0}, {"x": 200 + spread, "y": 300, "id": 1}]
        browser("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    browser("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert browser.js("view.scale") == pytest.approx(3 * before["scale"], rel=0.05)
    assert browser.js("state.selected") is None
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 400])
def test_the_page_can_be_used_by_keyboard_alone(browser, page, width):
    opened(browser, page, width)
    before = browser.js(VIEW)
    browser.js("plane.focus()")
    browser.press("+", "ArrowRight", "ArrowDown")
    after = browser.js(VIEW)
    assert after["scale"] == pytest.approx(1.4 * before["scale"])
    assert (after["x"] > before["x"], after["y"] > before["y"]) == (True, True)
    browser.press("0", "-")
    assert browser.js("view.scale") == pytest.approx(before["scale"] / 1.4)
    browser.press("0")
    assert browser.js(VIEW) == before
    browser.js("view.x = places[2 * 9]; view.y = places[2 * 9 + 1]")
    browser.press("Enter")
    chosen = browser.js("state.selected")
    assert browser.js("[screenX(state.selected), screenY(state.selected)]") == pytest.approx(
        browser.js("[screenX(9), screenY(9)]"), abs=0.5
    )
    assert f"selected no. {chosen}, class" in browser.js("document.getElementById('status').textContent")
    browser.press("Escape")
    assert browser.js("state.selected") is None
    assert browser.js("document.getElementById('picked').hidden")
    browser.js("document.getElementById('find').focus()")
    browser.press(*"no. 123", "Enter")
    assert browser.js("state.selected") == 123
    assert browser.js("pictureSize()") > 30
    browser.js("[...document.querySelectorAll('#legend button')][3].focus()")
    browser.press("Enter")
    assert browser.js("[...state.only]") == [3]
    unnamed = (
        "[...document.querySelectorAll('button, input, select, [tabindex]')].filter((one) => !(one.innerText"
    )
    unnamed += " || one.getAttribute('aria-label') || one.labels?.[0]?.innerText)).length"
    assert browser.js(unnamed) == 0
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_pictures_are_framed_in_the_colours_of_the_legend_on_light_and_dark_pages(browser, page, dark):
    opened(browser, page, 1300, dark)
    by = "document.getElementById('by')"
    browser.js(f"{by}.value = 2; {by}.dispatchEvent(new Event('change'))")
    assert browser.js("coloring.title") == "right or wrong"
    for _ in range(20):
        browser.settle()
    last = data_of(page.read_text())["count"] - 1  # painted over all others
    swatch = f"document.querySelectorAll('.legend i')[coloring.of[{last}]]"
    browser.js(
        "globalThis.probe = document.createElement('canvas').getContext('2d');"
        f"probe.fillStyle = getComputedStyle({swatch}).backgroundColor; probe.fillRect(0, 0, 1, 1);"
        "globalThis.painted = context.getImageData(0, 0, plane.width, plane.height).data;"
        "globalThis.start = (x, y) => 4 * (Math.round(y) * plane.width + Math.round(x));"
        "globalThis.pixel = (x, y) => [...painted.slice(start(x, y), start(x, y) + 3)]"
    )
    background = browser.js("pixel(1, 1)")
    frame = browser.js(f"pixel(screenX({last}) - pictureSize() / 2 - 1, screenY({last}))")
    legend = browser.js("[...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)]")
    assert background == ([29, 35, 41] if dark else [245, 247, 249])
    assert frame == pytest.approx(legend, abs=2)
    assert browser.complaints == []


@pytest.mark.slow
def test_ten_thousand_images_take_30_mb_and_move_at_30_frames_per_second(browser, tmp_path, monkeypatch):
    """Noise is the worst case of a JPEG. The layout is made up, because it does not affect the frame rate."""
    monkeypatch.setattr("intnacl.runs.explorer.project", lambda features: features[:, :2])
    count, page = 10_000, tmp_path / "many.html"
    images = torch.randint(256, (count, 3, SIDE, SIDE), dtype=torch.uint8)
    labels = torch.randint(10, (count,))
    names = tuple(f"folder/of/images/picture-{i:05}.jpeg" for i in range(count))
    many = Dataset(
        name="noise", split="test", images=images, labels=labels, classes=tuple("abcdefghij"), names=names
    )
    write_explorer(trained(tmp_path), many, [torch.randn(count, 8)], page)
    assert page.stat().st_size < 30e6
    opened(browser, page, 1300)
    for zoom in (1, 2, 5):
        browser.js(f"fit(); zoom({zoom})")
        browser.settle()
        browser.js(
            "globalThis.times = []; globalThis.on = true;"
            "requestAnimationFrame(function tick(t) { times.push(t); if (on) requestAnimationFrame(tick); })"
        )
        start = browser.js(VIEW)
        browser.mouse("pressed", 300, 400, button="left", clickCount=1)
        begun, step = time.monotonic(), 0
        while time.monotonic() - begun < 2:
            step += 1
            browser.mouse("moved", 300 + abs(step * 9 % 400 - 200), 400, button="left", buttons=1)
            time.sleep(0.01)
        browser.mouse("released", 301, 400, button="left", clickCount=1)
        times = browser.js("on = false, times")
        assert browser.js(VIEW) != start
        assert 1000 * (len(times) - 1) / (times[-1] - times[0]) >= 30, f"frames a second at zoom {zoom}"
    assert browser.complaints == []
