"""The page in a real browser: by mouse, by keys, by dragging, and in a narrow window."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.browser import CHROMIUM, Browser, open_browser
from tests.helpers.clouds import conv4
from tests.helpers.layouts import write_folder
from tests.helpers.page import (
    add_class,
    click,
    is_labelled,
    opened,
    says,
    select,
    settle,
    tile,
    tiles,
)
from tests.helpers.small_project import CLASSES, label, pattern, wait_until, wait_until_idle

pytest.importorskip("starlette")
from nearshot.app.page_state import page_state
from nearshot.app.project import Project
from nearshot.app.session import Session
from nearshot.errors import InputError
from nearshot.estimator import AccuracyEstimate, Embedder

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; make browser installs it"),
]
CTRL = 2
SHIFT = 8
ATTACK = "<img src=x onerror=document.title='stolen'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, session: Session) -> Iterator[Browser]:
    """The page of the session, with all photos embedded."""
    wait_until_idle(session)
    browser.resize(1200, 900)
    with opened(browser, session):
        browser.wait_for("document.querySelectorAll('.tile').length > 0")
        yield browser


def test_label_predict_correct_export_restart(
    page: Browser, session: Session, photos: Path, tmp_path: Path
) -> None:
    assert set(tiles(page).values()) == {"not labelled"}
    for code, name in enumerate(CLASSES):
        add_class(page, name)
        select(page, *(f"{name}{i}.png" for i in range(3)))
        page.press(str(code + 1))
    page.wait_for("document.querySelectorAll('.tile .percent').length == 9")
    page.wait_for("document.getElementById('accuracy-value').textContent == '100 %'")
    shown = tiles(page)
    for name in CLASSES:
        assert all(shown[f"{name}{i}.png"] == f"labelled {name}" for i in range(3))
        assert all(shown[f"{name}{i}.png"].startswith(f"predicted {name} ") for i in range(3, 6))
    # A wrong label is pointed out, and corrected.
    select(page, "ant4.png")
    page.press("2")
    page.wait_for(is_labelled("ant4.png", "bee"))
    settle(page, session)
    click(page, "Check labels", "nav")
    page.wait_for("document.querySelectorAll('.tile').length == 1")
    assert tiles(page) == {"ant4.png": "labelled bee"}
    assert page.ask(says("ant4.png", "looks like ant, "))
    select(page, "ant4.png")
    click(page, "Change to ant", "#selection")
    page.wait_for("!document.getElementById('empty').hidden")
    settle(page, session)
    labels = {photo.name: session.project.label_of(photo) for photo in session.project.present}
    assert labels["ant4.png"] == "ant"
    # Export: copies of all photos, and the classifier.
    click(page, "Export", "header")
    click(page, "Copy into folders")
    page.wait_for("document.getElementById('export-state').textContent.includes('copied to')")
    folder = session.project.folder / "sorted"
    copied = {path.name: path.parent.name for path in folder.rglob("*.png")}
    assert len(copied) == 18
    assert all(copied[name] in (name[:3], "none of these") for name in copied)
    assert len(list(photos.iterdir())) == 18
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    click(page, "For nearshot")
    page.wait_for(
        "document.getElementById('export-state').textContent.includes('in your downloads')"
    )
    assert page.complaints == []
    # Everything is there after a restart.
    before = labels | {"ant4.png": "ant"}
    session.stop()
    again = Session(Project(tmp_path / "project"), Embedder(conv4(), cache_dir=tmp_path / "cache"))
    again.start()
    wait_until_idle(again)
    with opened(page, again):
        click(page, "All photos", "nav")
        page.wait_for("document.querySelectorAll('.tile').length == 18")
        for name, given in before.items():
            if given:
                assert tiles(page)[name] == f"labelled {given}"


@pytest.mark.slow
def test_keys_alone_are_enough(page: Browser, session: Session) -> None:
    for name in CLASSES:
        add_class(page, name)
    page.ask(
        "document.getElementById('sort').value = 'name'; document.getElementById('sort').onchange()"
    )
    page.ask("document.getElementById('grid').focus()")
    page.press("Home")
    for key in ("1", "1", "1"):  # the next photo is selected after each
        page.press(key)
    page.wait_for(is_labelled("ant2.png", "ant"))
    settle(page, session)
    for _ in range(3):
        page.press("ArrowRight")
    page.press("ArrowRight", SHIFT)
    page.press("ArrowRight", SHIFT)
    assert page.ask("document.querySelectorAll('.tile[aria-selected=true]').length") == 3
    page.press("2")
    page.wait_for(is_labelled("bee2.png", "bee"))
    settle(page, session)
    page.wait_for(says("ant3.png", "predicted ant "))
    page.press("Home")
    for _ in range(3):
        page.press("ArrowRight")
    page.press("Enter")
    page.wait_for(is_labelled("ant3.png", "ant"))
    settle(page, session)
    page.press("z", CTRL)
    page.wait_for(says("ant3.png", "predicted "))
    page.press(" ")
    page.wait_for("document.getElementById('viewer').open")
    page.wait_for("document.querySelectorAll('#viewer-bars .bar').length > 0")
    assert page.ask("document.getElementById('viewer-name').textContent") == "ant3.png"
    page.press("1")
    page.wait_for(is_labelled("ant3.png", "ant"))
    settle(page, session)
    page.press("Escape")
    page.wait_for("!document.getElementById('viewer').open")
    select(page, "ant0.png")
    page.press("Delete")
    page.wait_for("document.querySelectorAll('.tile').length == 17")
    settle(page, session)
    page.press("z", CTRL)
    page.wait_for("document.querySelectorAll('.tile').length == 18")
    assert page.complaints == []


@pytest.mark.slow
def test_undo_restores_classes_by_name(page: Browser, session: Session) -> None:
    """Although removing and renaming others changes their numbers and names."""
    for code, name in enumerate(CLASSES):
        add_class(page, name)
        select(page, f"{name}0.png")
        page.press(str(code + 1))
        page.wait_for(is_labelled(f"{name}0.png", name))
        settle(page, session)
    select(page, f"{CLASSES[1]}0.png")
    page.press("3")
    page.wait_for(is_labelled(f"{CLASSES[1]}0.png", CLASSES[2]))
    settle(page, session)
    edit_first_class = "document.querySelector('#classes li .more').click()"
    # In one step, since the page may be drawn again in between.
    page.ask(f"{edit_first_class}; document.getElementById('remove-class').click()")
    page.wait_for("document.querySelectorAll('#classes li').length == 2")
    settle(page, session)
    page.ask(f"{edit_first_class}; document.getElementById('rename-name').value = 'wasp'")
    page.ask("document.getElementById('rename').requestSubmit()")
    page.wait_for("!document.getElementById('class-editor').open")
    settle(page, session)
    page.press("z", CTRL)
    wait_until(lambda: session.project.classes == ["bee", "cat"])
    settle(page, session)
    page.press("z", CTRL)
    page.wait_for(is_labelled(f"{CLASSES[0]}0.png", CLASSES[0]))
    settle(page, session)
    page.press("z", CTRL)
    page.wait_for(is_labelled(f"{CLASSES[1]}0.png", CLASSES[1]))
    settle(page, session)
    page.press("z", CTRL | SHIFT)
    page.wait_for(is_labelled(f"{CLASSES[1]}0.png", CLASSES[2]))
    settle(page, session)
    assert session.project.classes == list(CLASSES)


@pytest.mark.slow
def test_photos_are_dragged_to_classes(page: Browser, session: Session) -> None:
    add_class(page, "ant")
    select(page, "ant0.png", "ant1.png")
    page.ask(
        f"""{{const data = new DataTransfer();
        const options = {{bubbles: true, cancelable: true, dataTransfer: data}};
        {tile("ant1.png")}.dispatchEvent(new DragEvent('dragstart', options));
        const place = document.querySelector('#classes li');
        place.dispatchEvent(new DragEvent('dragover', options));
        place.dispatchEvent(new DragEvent('drop', options));}}"""
    )
    page.wait_for(f"{is_labelled('ant0.png', 'ant')} && {is_labelled('ant1.png', 'ant')}")
    wait_until(lambda: len(session.project.labels) == 2)
    assert sorted(session.project.labels) == ["../photos/ant0.png", "../photos/ant1.png"]


@pytest.mark.slow
def test_photos_are_added_and_other_files_named(browser: Browser, tmp_path: Path) -> None:
    session = Session(Project(tmp_path / "p"), Embedder(conv4()))
    session.start()
    members: dict[str, bytes] = {f"new{i}.png": pattern(i, i) for i in range(5)} | {
        "bad.png": b"<svg onload=alert(1)>"
    }
    folder = write_folder(tmp_path / "new", members)
    with opened(browser, session):
        browser.wait_for("document.getElementById('empty').textContent.includes('Drop photos')")
        root = browser.call("DOM.getDocument")["root"]["nodeId"]
        node = browser.call("DOM.querySelector", nodeId=root, selector="#files")["nodeId"]
        browser.call(
            "DOM.setFileInputFiles",
            nodeId=node,
            files=[str(path) for path in sorted(folder.iterdir())],
        )
        browser.wait_for("document.querySelectorAll('.tile').length == 5")
        browser.wait_for("document.getElementById('toast').textContent.includes('bad.png')")
    assert sorted(path.name for path in (tmp_path / "p" / "photos").iterdir()) == [
        f"new{i}.png" for i in range(5)
    ]


@pytest.mark.slow
def test_hostile_names_are_shown_as_text(page: Browser, session: Session) -> None:
    session.change(lambda project: project.add_photo(pattern(0, 77), f"{ATTACK}.png"))
    add_class(page, ATTACK)
    name = next(photo.name for photo in session.project.present if "onerror" in photo.name)
    page.wait_for(f"document.body.textContent.includes({json.dumps(name)})")
    select(page, "ant0.png", "ant1.png", "bee0.png")
    page.wait_for("document.body.textContent.includes('3 photos')")
    page.press("1")
    settle(page, session)
    page.wait_for("document.querySelectorAll('.chip').length > 3")
    page.ask("document.getElementById('accuracy').click()")
    page.ask("document.getElementById('confusions').close()")
    select(page, "bee1.png")
    page.wait_for("document.body.textContent.includes('1 photo')")
    page.press(" ")
    page.wait_for("document.querySelectorAll('#viewer-near img').length > 0")
    assert page.ask("document.title") == "project"
    assert page.ask("document.querySelectorAll('img[src=x]').length") == 0
    assert page.complaints == []


@pytest.mark.slow
def test_a_narrow_window_does_not_scroll_sideways(page: Browser, session: Session) -> None:
    for name in CLASSES:
        label(session, name, 0, 1, 2)
    session.change(
        lambda project: project.add_class("a long name of a class that has no end and no sense ")
    )
    settle(page, session)
    page.resize(400, 800)
    page.wait_for("document.querySelectorAll('#classes li').length == 4")
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    outside = """[...document.querySelectorAll('header *, main *')].filter(
        (element) => !element.closest('.choices') && element.getBoundingClientRect().right > 401
    ).length"""
    assert page.ask(overflow) == 0
    page.wait_for("document.querySelectorAll('.tile').length > 0")
    page.ask("document.querySelector('.tile').click()")
    page.wait_for("!document.getElementById('selection').hidden")
    assert page.ask(overflow) == 0
    assert page.ask(outside) == 0
    assert page.ask("document.getElementById('selection').getBoundingClientRect().bottom") <= 800


@pytest.mark.slow
def test_thousands_of_photos_have_few_elements(
    page: Browser, monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    """The list is virtual: photos out of sight have no elements."""

    def state_of_many(session: Session) -> dict[str, Any]:
        state = page_state(session)
        photo_id, _, *others = state["photos"][0]
        state["photos"] = [[f"{photo_id}{n}", f"{n}.png", *others] for n in range(5000)]
        state["n_done"] = 5000
        return state

    monkeypatch.setattr("nearshot.app.server.page_state", state_of_many)
    session.change(lambda project: None)
    page.wait_for("document.querySelector('#heading small').textContent == '5,000 photos'")
    assert page.ask("document.querySelectorAll('.tile').length") < 120
    page.ask("document.getElementById('grid').focus()")
    page.press("End")
    page.wait_for(f"Boolean({tile('4999.png')})")
    assert page.ask("document.querySelectorAll('.tile').length") < 120
    assert (
        page.ask(
            "document.querySelector('.tile[aria-selected=true]').getAttribute('aria-posinset')"
        )
        == "5000"
    )


def labels_by_name(session: Session) -> dict[str, str | None]:
    return {photo.name: session.project.label_of(photo) for photo in session.project.present}


@pytest.mark.slow
def test_accepting_everything_leaves_labels_alone(page: Browser, session: Session) -> None:
    """Although one of them is doubted."""
    for name in CLASSES:
        label(session, name, 0, 1, 2)
    wrong = [photo.id for photo in session.project.present if photo.name == "ant3.png"]
    session.change(lambda project: project.set_label(wrong, "bee"))
    wait_until_idle(session)
    by_hand = {name: label for name, label in labels_by_name(session).items() if label}
    click(page, "Check labels", "nav")
    page.wait_for(f"Boolean({tile('ant3.png')})")
    n_steps = len(session.project.history.undo)
    select(page, "ant3.png")
    page.press("Enter")
    page.wait_for("document.getElementById('toast').textContent.includes('Nothing was changed')")
    assert labels_by_name(session)["ant3.png"] == "bee"
    assert len(session.project.history.undo) == n_steps
    click(page, "All photos", "nav")
    page.wait_for("document.querySelectorAll('.tile').length == 18")
    page.ask("document.getElementById('grid').focus()")
    page.press("a", CTRL)
    page.press("Enter")
    wait_until(lambda: len(session.project.labels) == 18)
    assert labels_by_name(session) == labels_by_name(session) | by_hand
    assert len(session.project.accepted) == 8
    assert len(session.project.history.undo) == n_steps + 1
    # Everything is labelled now, so that nothing is left to accept.
    page.wait_for("document.querySelectorAll('.chip.sure').length == 18")
    page.ask("document.getElementById('toast').textContent = ''")
    page.press("a", CTRL)
    page.press("Enter")
    page.wait_for("document.getElementById('toast').textContent.includes('Nothing was changed')")
    assert len(session.project.history.undo) == n_steps + 1
    # One action, although it was of three classes.
    page.press("z", CTRL)
    wait_until(lambda: len(session.project.labels) == 10)
    assert {name: label for name, label in labels_by_name(session).items() if label} == by_hand


@pytest.mark.slow
def test_a_selection_of_doubts_is_changed_by_its_button(page: Browser, session: Session) -> None:
    for name in CLASSES:
        label(session, name, 0, 1, 2, 3)
    wrong = [photo.id for photo in session.project.present if photo.name == "ant0.png"]
    session.change(lambda project: project.set_label(wrong, "bee"))
    settle(page, session)
    click(page, "All photos", "nav")
    page.wait_for(says("ant0.png", "looks like ant"))
    select(page, "ant0.png", "ant1.png")
    page.wait_for("!document.getElementById('selection').hidden")
    assert not page.ask("Boolean(document.getElementById('change-doubted'))")
    select(page, "ant0.png")
    click(page, "Change to ant", "#selection")
    page.wait_for(is_labelled("ant0.png", "ant"))


@pytest.mark.slow
def test_merging_classes_is_asked_and_undone(page: Browser, session: Session) -> None:
    for name in CLASSES:
        label(session, name, 0)
    page.wait_for("document.querySelectorAll('#classes li').length == 3")
    for answer in ("Cancel", "Merge"):
        rename = "document.querySelector('#classes li .more').click();"
        rename += "document.getElementById('rename-name').value = ' bee ';"
        page.ask(f"{rename} document.getElementById('rename').requestSubmit()")
        page.wait_for("document.getElementById('asker').open")
        assert "1 labelled photo" in page.ask("document.getElementById('question').textContent")
        assert session.project.classes == list(CLASSES)
        click(page, answer, "#asker")
        page.wait_for("!document.getElementById('asker').open")
        page.ask("document.getElementById('class-editor').close()")
    wait_until(lambda: session.project.classes == ["bee", "cat"])
    page.wait_for("document.querySelectorAll('#classes li').length == 2")
    assert labels_by_name(session)["ant0.png"] == "bee"
    click(page, "↶", "header")
    wait_until(lambda: session.project.classes == list(CLASSES))
    assert labels_by_name(session)["ant0.png"] == "ant"


@pytest.mark.slow
def test_undo_takes_back_keeping_a_label(page: Browser, session: Session) -> None:
    for name in CLASSES:
        label(session, name, 0, 1, 2)
    wrong = [photo.id for photo in session.project.present if photo.name == "ant3.png"]
    session.change(lambda project: project.set_label(wrong, "bee"))
    settle(page, session)
    click(page, "Check labels", "nav")
    page.wait_for(f"Boolean({tile('ant3.png')})")
    select(page, "ant3.png")
    click(page, "Keep the label", "#selection")
    wait_until(lambda: len(session.project.confirmed) == 1)
    page.press("z", CTRL)
    wait_until(lambda: not session.project.confirmed)
    assert labels_by_name(session)["ant3.png"] == "bee"
    page.wait_for(says("ant3.png", "looks like"))


@pytest.mark.slow
def test_names_of_folders_and_removed_photos_are_undone_after_a_reload(
    browser: Browser, tmp_path: Path
) -> None:
    members = {
        f"{name}/{i}.png": pattern(code, i) for code, name in enumerate("ab") for i in (1, 2)
    }
    folder = write_folder(tmp_path / "photos", members)
    session = Session(Project(tmp_path / "p", [folder]), Embedder(conv4()))
    session.start()
    wait_until_idle(session)
    with opened(browser, session):
        click(browser, "Use the names of the 2 folders", "main")
        wait_until(lambda: len(session.project.labels) == 4)
        # Names repeat, so that tiles show the folders.
        browser.wait_for(is_labelled("a/1.png", "a"))
        click(browser, "All photos", "nav")
        select(browser, "a/1.png")
        browser.press("Delete")
        wait_until(lambda: len(session.project.removed) == 1)
        browser.call("Page.reload")
        click(browser, "All photos", "nav")
        browser.wait_for("document.querySelectorAll('.tile').length == 3")
        click(browser, "Removed", "nav")
        browser.wait_for(f"Boolean({tile('a/1.png')})")
        select(browser, "a/1.png")
        click(browser, "Put back", "#selection")
        wait_until(lambda: not session.project.removed)
        browser.press("z", CTRL)
        wait_until(lambda: len(session.project.removed) == 1)
        browser.press("z", CTRL)
        wait_until(lambda: not session.project.removed)
        browser.press("z", CTRL)
        wait_until(lambda: not session.project.labels)
        assert session.project.classes == []


@pytest.mark.slow
def test_none_of_these_is_a_label(
    page: Browser, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state_of_strays(session: Session) -> dict[str, Any]:
        """The answer for every photo is "none of these"."""
        state = page_state(session)
        for row in state["photos"]:
            row[4] = -2
        return state

    monkeypatch.setattr("nearshot.app.server.page_state", state_of_strays)
    session.change(lambda project: project.add_class("ant"))
    click(page, "None of these", "nav")
    page.wait_for("document.querySelectorAll('.tile').length == 18")
    page.ask(
        "document.getElementById('sort').value = 'name'; document.getElementById('sort').onchange()"
    )
    select(page, "ant0.png")
    page.press("Enter")
    page.wait_for(is_labelled("ant0.png", "none of these"))
    selected = "document.querySelector('.tile[aria-selected=true]').dataset.name"
    assert page.ask(selected) == "ant1.png"
    page.press("0")
    page.wait_for(is_labelled("ant1.png", "none of these"))
    select(page, "bee0.png", "bee1.png")
    page.ask(
        f"""{{const data = new DataTransfer();
        const options = {{bubbles: true, cancelable: true, dataTransfer: data}};
        {tile("bee1.png")}.dispatchEvent(new DragEvent('dragstart', options));
        const place = document.querySelector('nav li[data-view=none]');
        place.dispatchEvent(new DragEvent('dragover', options));
        place.dispatchEvent(new DragEvent('drop', options));}}"""
    )
    page.wait_for(is_labelled("bee1.png", "none of these"))
    wait_until(lambda: len(session.project.labels) == 4)
    assert set(session.project.labels.values()) == {"none of these"}


@pytest.mark.slow
def test_a_refused_request_shows_what_is_true(
    page: Browser, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_class(page, "ant")

    def refuses(entry: object) -> None:
        raise InputError("The disk is full.")

    monkeypatch.setattr(session.project._journal, "append", refuses)
    select(page, "ant0.png", "ant1.png")
    page.press("1")
    page.wait_for("document.getElementById('toast').textContent.includes('disk is full')")
    page.wait_for(says("ant0.png", "not labelled"))
    assert page.ask("document.querySelectorAll('.chip').length") == 0


@pytest.mark.slow
def test_a_class_keeps_its_key_and_is_found_by_typing(page: Browser, session: Session) -> None:
    names = [f"species {number}" for number in range(40)]
    session.change(lambda project: [project.add_class(name) for name in names])
    session.change(lambda project: project.remove_class("species 0"))
    page.wait_for("document.querySelectorAll('#classes li').length == 39")
    select(page, "ant0.png")
    page.press("2")
    page.wait_for(is_labelled("ant0.png", "species 1"))
    select(page, "ant1.png", "ant2.png")
    page.press("/")
    page.wait_for("document.getElementById('finder').open")
    page.ask("document.getElementById('finder-name').value = 'es 38'")
    page.ask("document.getElementById('finder-name').oninput()")
    page.ask("document.getElementById('find-class').requestSubmit()")
    page.wait_for(is_labelled("ant2.png", "species 38"))
    # A name that is new makes a class of the selection, in one action.
    select(page, "bee1.png", "bee2.png")
    page.press("/")
    page.wait_for("document.getElementById('finder').open")
    page.ask("document.getElementById('finder-name').value = 'wasp'")
    page.ask("document.getElementById('finder-name').oninput()")
    click(page, "New class “wasp”", "#finder")
    page.wait_for(is_labelled("bee2.png", "wasp"))
    page.press("z", CTRL)
    wait_until(lambda: "wasp" not in session.project.classes)
    assert labels_by_name(session)["bee1.png"] is None


@pytest.mark.slow
def test_answers_above_a_probability_are_accepted_and_confirmed_one_by_one(
    page: Browser, session: Session
) -> None:
    for name in CLASSES:
        label(session, name, 0, 1, 2)
    settle(page, session)
    click(page, "All photos", "nav")
    page.wait_for("document.querySelectorAll('.tile .percent').length == 9")
    click(page, "Accept all above", "main")
    slider = "document.getElementById('accept-above')"
    page.ask(f"{slider}.value = 99; {slider}.oninput()")
    few = page.ask("document.getElementById('accept-count').textContent")
    page.ask(f"{slider}.value = 50; {slider}.oninput()")
    many = page.ask("document.getElementById('accept-count').textContent")
    assert few != many
    assert many.startswith("9 photos of 9.")
    assert "to be wrong" in many
    page.ask("document.getElementById('accept-all').click()")
    wait_until(lambda: len(session.project.accepted) == 9)
    wait_until_idle(session)
    estimate = session.model.estimate
    assert isinstance(estimate, AccuracyEstimate)
    assert estimate.n == 9  # of those that a person labelled
    click(page, "Accepted", "nav")
    page.wait_for("document.querySelectorAll('.tile').length == 9")
    page.ask("document.querySelector('.tile').click()")
    page.press("Enter")
    wait_until(lambda: len(session.project.accepted) == 8)


@pytest.mark.slow
def test_photos_that_show_the_same_thing_are_recorded(page: Browser, session: Session) -> None:
    select(page, "ant0.png", "ant1.png")
    click(page, "show the same thing", "#selection")
    page.wait_for(f"Boolean({tile('ant1.png')}.querySelector('.thing'))")
    assert len(set(session.project.things.values())) == 1
    click(page, "Not the same thing", "#selection")
    wait_until(lambda: not session.project.things)


@pytest.mark.slow
def test_photos_are_searched_by_name(page: Browser) -> None:
    page.ask("document.getElementById('search').value = 'bee'")
    page.ask("document.getElementById('search').oninput()")
    page.wait_for("document.querySelectorAll('.tile').length == 6")
    assert all(name.startswith("bee") for name in tiles(page))
