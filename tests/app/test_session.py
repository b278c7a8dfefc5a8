"""A session: its answers are the classifier's, and labels are fitted at once."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.clouds import clouds, conv4
from tests.helpers.small_project import label, label_all, wait_until_idle

from nearshot.app.model import N_SUGGESTIONS, fit_model
from nearshot.app.project import Project
from nearshot.app.session import Session
from nearshot.app.thumbnails import large_jpeg, thumbnail_jpeg
from nearshot.errors import FileFormatError, InputError
from nearshot.estimator import AccuracyEstimate, Embedder, FewShotClassifier
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.models import save_backbone


def test_the_model_is_the_classifier_of_the_labelled_photos() -> None:
    drawn = clouds(0, n_shot=6)
    features = {f"support {i}": row for i, row in enumerate(drawn.support)}
    labels = {f"support {i}": str(name) for i, name in enumerate(drawn.labels)}
    features |= {f"query {i}": row for i, row in enumerate([*drawn.query, *drawn.strangers])}
    model = fit_model(features, labels, reject_rate=0.05)
    plain = FewShotClassifier(None, reject_rate=0.05).fit(drawn.support, drawn.labels)
    query = np.concatenate([drawn.query, drawn.strangers])
    answers = plain.predict(query)
    probabilities = plain.predict_proba(query)
    for row, expected in enumerate(answers):
        guess = model.guesses[f"query {row}"]
        assert ("none of these" if guess.is_novel else guess.label) == expected
        assert guess.confidence == pytest.approx(probabilities[row].max())
    assert model.estimate == plain.estimate_accuracy()
    assert len(model.label_next) == N_SUGGESTIONS
    assert set(model.label_next) <= set(model.guesses)
    most_doubtful = max(model.guesses.values(), key=lambda guess: guess.doubt)
    assert model.guesses[model.label_next[0]] == most_doubtful
    assert model.confusion.sum() == len(drawn.support)
    assert np.trace(model.confusion) / model.confusion.sum() == pytest.approx(
        plain.estimate_accuracy().mean
    )


@pytest.mark.parametrize("n_labelled", [0, 1, 2])
def test_a_model_of_few_labels(n_labelled: int) -> None:
    drawn = clouds(1)
    features = {str(i): row for i, row in enumerate(drawn.support)}
    labels = {str(i): "one" for i in range(n_labelled)}
    model = fit_model(features, labels, reject_rate=0.05)
    assert len(model.label_next) == min(N_SUGGESTIONS, len(features) - n_labelled)
    assert isinstance(model.estimate, str)
    assert len(model.guesses) == (len(features) - n_labelled if n_labelled > 1 else 0)
    assert fit_model({}, {}, reject_rate=0.05).label_next == ()


def test_photos_that_look_alike_count_once() -> None:
    """Of each of 30 things two labelled photos and two others."""
    drawn = clouds(0, n_shot=6)
    labelled = {}
    others = {}
    labels = {}
    for thing, row in enumerate(drawn.support):
        for copy in range(2):
            photo = f"{thing}, {copy}"
            labelled[photo] = row + 0.01 * copy
            labels[photo] = str(drawn.labels[thing])
            others[f"{photo}, without a label"] = row + 0.02 + 0.01 * copy
    model = fit_model(labelled | others, labels, look_alike_cosine=0.99, reject_rate=0.05)
    assert isinstance(model.estimate, AccuracyEstimate)
    assert (model.estimate.n, model.estimate.n_copies) == (30, 30)
    (note,) = model.notes
    assert "30 of 60 photos" in note
    before_labels = fit_model(others, {}, look_alike_cosine=0.99, reject_rate=0.05)
    for label_next in (model.label_next, before_labels.label_next):
        things = [photo.split(",")[0] for photo in label_next]
        assert len(set(things)) == len(things) > 20


def test_photos_that_the_user_says_show_the_same_thing_count_once(session: Session) -> None:
    label_all(session, 0, 1, 2, 3)
    before = session.model.estimate
    assert isinstance(before, AccuracyEstimate)
    assert before.n == 12
    ids = [photo.id for photo in session.project.present if photo.name in ("ant0.png", "ant1.png")]
    session.change(lambda project: project.set_same_thing(ids, same=True))
    wait_until_idle(session)
    estimate = session.model.estimate
    assert isinstance(estimate, AccuracyEstimate)
    assert (estimate.n, estimate.n_copies) == (11, 1)
    assert session.classifier().estimate_accuracy().n == 11
    session.change(lambda project: project.undo())
    wait_until_idle(session)
    assert session.model.estimate == before


def test_accepted_answers_train_but_are_not_tested(session: Session) -> None:
    label_all(session, 0, 1, 2)
    before = session.model
    answers = {photo: guess.label for photo, guess in before.guesses.items()}
    session.change(lambda project: project.accept(answers))
    wait_until_idle(session)
    model = session.model
    assert len(model.support) == 18
    assert isinstance(model.estimate, AccuracyEstimate)
    assert model.estimate.n == 9
    assert model.confusion.sum() == 9
    assert set(model.held_out) == set(before.held_out)
    assert session.classifier().estimate_accuracy() == model.estimate
    session.change(lambda project: project.confirm(list(answers)))
    wait_until_idle(session)
    assert isinstance(session.model.estimate, AccuracyEstimate)
    assert session.model.estimate.n == 18


def test_photos_of_none_of_the_classes_are_strays(session: Session) -> None:
    label_all(session, 0, 1, 2)
    guesses = dict(session.model.guesses)
    stray = next(photo.id for photo in session.project.present if photo.name == "cat5.png")
    session.change(lambda project: project.set_label([stray], NONE_OF_THESE))
    wait_until_idle(session)
    assert stray not in session.model.support
    assert set(guesses) - set(session.model.guesses) == {stray}
    assert session.classifier().classes_.tolist() == ["ant", "bee", "cat"]


def test_all_photos_of_a_class_look_alike() -> None:
    features = {str(i): np.array([1.0, i // 2, 0.001 * i]) for i in range(4)}
    labels = {str(i): str(i // 2) for i in range(4)}
    model = fit_model(features, labels, look_alike_cosine=0.99, reject_rate=0.05)
    assert isinstance(model.estimate, str)
    assert "2 of 4 photos" in model.notes[0]
    assert "'0', '1'" in model.notes[1]


def test_a_labelled_photo_is_explained_by_the_others(session: Session) -> None:
    for name in ("ant", "bee", "cat"):
        label(session, name, 0, 1, 2, 3)
    names = {photo.id: photo.name for photo in session.project.present}
    wrong = next(photo_id for photo_id, name in names.items() if name == "ant3.png")
    session.change(lambda project: project.set_label([wrong], "bee"))
    wait_until_idle(session)
    explanation = session.explain(session.project.photos[wrong])
    assert wrong not in explanation.nearest
    assert {names[photo_id][:3] for photo_id in explanation.nearest[:3]} == {"ant"}
    assert sum(share for _, share in explanation.probabilities) == pytest.approx(1)
    guess = session.model.suspicious[wrong]
    # Held out, in both places.
    label_of_highest, highest = explanation.probabilities[0]
    assert label_of_highest == guess.label
    assert highest == pytest.approx(guess.confidence)
    assert guess.label == "ant"


def test_an_unreadable_photo_does_not_stop_the_others(tmp_path: Path, photos: Path) -> None:
    (photos / "bad.png").write_bytes(b"<script>alert(1)</script>")
    session = Session(Project(tmp_path / "p", [photos]), Embedder(conv4()))
    session.start()
    wait_until_idle(session)
    bad = next(photo for photo in session.project.present if photo.name == "bad.png")
    assert list(session.errors) == [bad.id]
    assert str(tmp_path) not in session.errors[bad.id]
    assert len(session.features) == 18
    with pytest.raises(FileFormatError):
        thumbnail_jpeg(session.project, bad)
    session.stop()


def test_a_failure_ends_the_thread_and_is_shown(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(images: object) -> object:
        raise RuntimeError("no more memory")

    session = Session(Project(tmp_path / "p", [photos]), Embedder(fails))
    session.start()
    session._thread.join()
    assert "no more memory" in session.failure
    assert "no more memory" in capsys.readouterr().err
    session.stop()


def test_the_exported_classifier_gives_the_same_answers(session: Session) -> None:
    with pytest.raises(InputError):
        session.classifier()
    label_all(session, 0, 1, 2, 3)
    next(photo for photo in session.project.present if photo.name == "bee3.png").path.unlink()
    assert session.classifier().support_labels_.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    ids = [photo.id for photo in session.project.present if "3" in photo.name]
    session.change(lambda project: project.set_label(ids, None))
    wait_until_idle(session)
    classifier = session.classifier()
    for photo in session.project.present:
        guess = session.model.guesses.get(photo.id)
        if guess is not None and photo.path.exists():
            explanation = classifier.explain([photo.path])[0]
            assert explanation.nearest == guess.label
            assert explanation.probability == pytest.approx(guess.confidence, abs=1e-5)


def test_thumbnails_are_made_once_for_each_content(tmp_path: Path) -> None:
    Image.new("RGBA", (900, 300), (200, 30, 30, 128)).save(tmp_path / "photo.png")
    project = Project(tmp_path / "p")
    photo = project.add_photo((tmp_path / "photo.png").read_bytes(), "photo.png")
    small = thumbnail_jpeg(project, photo)
    assert Image.open(io.BytesIO(small)).size == (320, 107)
    assert Image.open(io.BytesIO(large_jpeg(photo))).size == (900, 300)
    kept = list((project.folder / "thumbnails").iterdir())
    assert len(kept) == 1
    kept[0].write_bytes(b"from the cache")
    assert thumbnail_jpeg(project, photo) == b"from the cache"
    Image.new("RGB", (40, 40)).save(photo.path)
    assert Image.open(io.BytesIO(thumbnail_jpeg(project, photo))).size == (40, 40)
    project.close()


def test_a_label_among_many_is_learnt_without_holding_photos_out() -> None:
    """Weights, threshold and estimate stay, until a tenth of the labels has changed."""
    drawn = clouds(4, n_way=3, n_shot=100)
    features = {f"photo {i}": row for i, row in enumerate(drawn.support)}
    labels = dict(zip(features, drawn.labels.tolist(), strict=True))
    first = dict(list(labels.items())[:-40])
    model = fit_model(features, first, reject_rate=0.05)
    few_more = dict(list(labels.items())[:-30])
    quick = fit_model(features, few_more, reject_rate=0.05, previous=model)
    whole = fit_model(features, few_more, reject_rate=0.05)
    assert quick.classifier is not None
    assert model.classifier is not None
    assert quick.estimate == model.estimate != whole.estimate
    assert quick.classifier.threshold_ == model.classifier.threshold_
    assert len(quick.support) == len(whole.support) == 270
    assert {photo: guess.label for photo, guess in quick.guesses.items()} == {
        photo: guess.label for photo, guess in whole.guesses.items()
    }
    many_more = fit_model(features, labels, reject_rate=0.05, previous=quick)
    assert many_more.estimate == fit_model(features, labels, reject_rate=0.05).estimate
    assert many_more.calibrated_on == labels
    new_class = few_more | {"photo 299": "another"}
    assert (
        fit_model(features, new_class, reject_rate=0.05, previous=quick).calibrated_on == new_class
    )


def test_the_more_accurate_backbone_is_measured_and_used(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.safetensors"
    save_backbone(conv4(), weights)
    pair = f"{weights}+{weights}"
    monkeypatch.setattr("nearshot.app.session.MORE_ACCURATE", pair)
    monkeypatch.setattr("nearshot.app.session.installed_backbones", lambda: [pair])
    label_all(session, 0, 1, 2)
    offer = session.offer()
    assert offer is not None
    assert offer.present.estimate == session.model.estimate
    assert offer.offered.photos_per_second > 0
    dim = session.embedder.dim
    session.use_backbone(pair)
    wait_until_idle(session)
    assert {len(feature) for feature in session.features.values()} == {2 * (dim or 0)}
    assert session.model.estimate == offer.offered.estimate
    assert len(session.features) == len(session.project.present)
    monkeypatch.setattr("nearshot.app.session.installed_backbones", list)
    assert session.offer() is None
