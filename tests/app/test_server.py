"""The server: which requests it refuses, what it accepts, and what it answers."""

import csv
import errno
import io
import json
import os
import re
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.helpers.clouds import conv4
from tests.helpers.layouts import encoded
from tests.helpers.small_project import label_all, pattern, wait_until_idle

from nearshot.app.session import Session
from nearshot.estimator import FewShotClassifier
from nearshot.models import save_backbone

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from nearshot.app import connections
from nearshot.app import server as module
from nearshot.app.bodies import FIELDS
from nearshot.app.changes import CHANGES
from nearshot.app.exports import export_onnx_file
from nearshot.app.server import Server, listening

SECRET = "secret-of-the-test"  # noqa: S105 (no secret)
PORT = 8765
HERE = f"http://127.0.0.1:{PORT}"
ATTACK = "<img src=x onerror=alert(1)>"


def new_client(session: Session, headers: dict[str, str], path: str = SECRET) -> TestClient:
    """Return a client, whose addresses are relative to those of the page."""
    app = Server(session).make_app(SECRET, PORT)
    return TestClient(app, base_url=f"{HERE}/{path}/", headers=headers)


@pytest.fixture
def client(session: Session) -> TestClient:
    """A client with the address of the page, as a browser has it."""
    return new_client(session, {"origin": HERE})


def put(client: TestClient, data: bytes, name: str, group: str = "") -> Any:
    return client.put("/api/photos", params={"name": name, "group": group}, content=data)


ROUTES = [
    *(
        ("GET", path)
        for path in ("/", "/static/app.js", "/api/state", "/export/photos.csv", "/nowhere")
    ),
    ("PUT", "/api/photos?name=a.png"),
    ("POST", "/api/add-class"),
    ("POST", "/api/copy"),
    ("POST", "/api/offer"),
]
OTHER_HOSTS = ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""]
OTHER_PAGES = [
    "http://evil.example",
    "null",
    f"http://127.0.0.1:{PORT + 1}",
    f"https://127.0.0.1:{PORT}",
]


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        *((path, {}) for path in ("wrong", SECRET[:-1], f"{SECRET}x", "%FF", "", f"./{SECRET}x")),
        *((SECRET, {"host": host}) for host in OTHER_HOSTS),
        *((SECRET, {"origin": origin}) for origin in OTHER_PAGES),
    ],
    ids=str,
)
def test_requests_without_the_secret_and_from_elsewhere_are_refused(
    path: str, wrong: dict[str, str], session: Session
) -> None:
    client = new_client(session, {"origin": HERE, **wrong}, path)
    client.cookies.set("secret", SECRET)
    for method, route in ROUTES:
        content = b'{"name": "x"}' if method != "GET" else None
        answer = client.request(method, route, content=content)
        assert answer.status_code == 403
        assert SECRET not in answer.text
    assert session.project.classes == []
    assert len(session.project.photos) == 18


def test_there_is_no_cookie_and_the_address_needs_its_slash(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert SECRET not in answer.text
    # Without it, the addresses on the page, which are relative, would lack the secret.
    assert client.get(f"{HERE}/{SECRET}").status_code == 403
    assert client.get(f"{HERE}/").status_code == 403
    addresses = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert len(addresses) >= 3
    for address in addresses:
        assert client.get(address).status_code == 200


def test_on_the_usual_port_browsers_send_none(session: Session) -> None:
    app = Server(session).make_app(SECRET, 80)
    for host in ("127.0.0.1", "localhost", "127.0.0.1:80"):
        headers = {"host": host, "origin": f"http://{host}"}
        client = TestClient(app, base_url=f"http://{host}/{SECRET}/", headers=headers)
        assert client.get("/api/state").status_code == 200
    assert new_client(session, {"host": "127.0.0.1"}).get("/").status_code == 403


def test_only_the_user_can_read_the_file_that_leads_to_the_address(session: Session) -> None:
    """The browser is given this file: its command line can be read by others."""
    file = session.project.folder / "open-the-page.html"
    file.symlink_to(session.project.folder / "of-another-user")
    session.start = lambda: None  # type: ignore[method-assign]
    session.stop = lambda: None  # type: ignore[method-assign]
    with listening(session, 0) as server:
        assert server.redirect == file
        assert stat.S_IMODE(file.lstat().st_mode) == 0o600
        assert f"url={server.address}" in file.read_text()
        assert server.address not in server.redirect.as_uri()
    assert not file.exists()
    assert not (session.project.folder / "of-another-user").exists()


def test_a_change_needs_an_origin(client: TestClient, session: Session) -> None:
    del client.headers["origin"]
    assert client.post("/api/add-class", json={"name": "x"}).status_code == 403
    assert client.get("/api/state").status_code == 200
    assert session.project.classes == []


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/state", "/nowhere", "/export/photos.csv"]
)
def test_every_answer_has_the_headers(path: str, client: TestClient) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_inline_script_or_style_and_the_script_makes_no_markup(
    client: TestClient,
) -> None:
    page = client.get("/").text
    folder = module.STATIC
    scripts = [client.get(f"/static/{path.name}").text for path in folder.glob("*.js")]
    assert len(scripts) > 5
    assert "<style" not in page
    assert " style=" not in page
    assert " on" not in {part[:3] for part in page.split("<")}
    assert page.count("<script") == 1
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
    ):
        assert not any(way in script for script in scripts)
    assert client.get("/static/server.py").status_code == 404


@pytest.mark.parametrize(
    "name", ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", "..%5cserver.py"]
)
def test_no_path_of_a_request_is_opened(name: str, client: TestClient) -> None:
    for route in ("static", "export", "thumbnails", "large", "api/photos"):
        assert client.get(f"/{route}/{name}").status_code in (400, 404)
        assert client.get(f"/{route}/{name}.jpg").status_code in (400, 404)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"<script>alert(1)</script>", "page.png"),
        (b"", "empty.png"),
        (pattern(0, 0)[:60], "torn.png"),
        (b"GIF89a" + b"\xff" * 100, "broken.gif"),
        (pattern(0, 0), "photo.svg"),
        (pattern(0, 0), "photo"),
        (pattern(0, 0), ""),
    ],
)
def test_uploads_that_are_not_photos_are_refused(
    data: bytes, name: str, client: TestClient, session: Session
) -> None:
    answer = put(client, data, name)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert len(session.project.photos) == 18
    assert not (session.project.folder / "photos").exists()


def test_uploads_are_limited(
    client: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    monkeypatch.setattr(module, "MAX_UPLOAD_BYTES", len(large) - 1)
    assert put(client, large, "large.png").status_code == 413

    def in_parts() -> Iterator[bytes]:  # without a declared length
        yield large
        yield large

    assert client.put("/api/photos?name=large.png", content=in_parts()).status_code == 413
    monkeypatch.setattr(module, "MAX_UPLOAD_BYTES", 1 << 20)
    many_pixels = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(many_pixels, "PNG")
    assert put(client, many_pixels.getvalue(), "bomb.png").status_code == 400
    monkeypatch.setattr("nearshot.app.project.MAX_PHOTOS", 19)
    assert put(client, pattern(0, 100), "a.png").status_code == 200
    assert put(client, pattern(0, 101), "b.png").status_code == 400
    assert len(session.project.photos) == 19


WRONG_VALUES: list[Any] = [None, 1, 1.5, "x", [], [1], [[]], {}, {"x": 1}, True, "\ud800", 10**400]


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_wrong_requests_are_refused_with_a_sentence(
    name: str, client: TestClient, session: Session
) -> None:
    """Not JSON, no object, missing and unknown fields, and every field of every other type."""
    bodies = [b"", b"not json", b"\xff", b"[" * 100_000, b"{" * 10, b'{"unknown": 1}']
    bodies += [json.dumps(value).encode() for value in WRONG_VALUES if value != {}]
    if any(field.is_required for field in FIELDS[name].values()):
        bodies.append(b"{}")
    for key, field in FIELDS[name].items():
        good = {other: GOOD[FIELDS[name][other].words] for other in FIELDS[name]}
        bodies += [
            json.dumps({**good, key: value}).encode()
            for value in WRONG_VALUES
            if not field.is_valid(value)
        ]
        bodies.append(json.dumps({**good, "\ud800": 1}).encode())
    for body in bodies:
        answer = client.post(f"/api/{name}", content=body)
        assert answer.status_code == 400, body[:100]
        assert len(answer.json()["error"]) > 10
    assert session.project.classes == []


GOOD = {
    "names, or null, by identifiers": {},
    "names by identifiers": {},
    "a list of identifiers": [],
    "a text": "x",
    "true or false": True,
    "an integer from 0 to 999": 0,
}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("label", {"labels": {"gone": None}}),
        ("label", {"labels": {"\ud800": "\ud800"}}),
        ("confirm", {"ids": ["\ud800"]}),
        ("add-class", {"name": "\ud800"}),
        ("rename-class", {"name": "gone", "new_name": "x"}),
        ("remove-class", {"name": "\ud800"}),
    ],
)
def test_what_does_not_exist_is_refused_with_a_sentence(
    name: str, body: dict[str, Any], client: TestClient
) -> None:
    answer = client.post(f"/api/{name}", content=json.dumps(body))
    assert answer.status_code == 400
    assert len(answer.json()["error"]) > 10


def test_every_change_has_its_fields() -> None:
    assert FIELDS.keys() == CHANGES.keys() | {"copy"}


@pytest.mark.parametrize("after", ["9" * 5000, "²", "-1", "1e9", "\0"])
def test_odd_versions_are_answered_at_once(after: str, client: TestClient) -> None:
    assert client.get("/api/state", params={"after": after}).status_code == 200


def test_a_full_disk_is_a_sentence(
    client: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")

    monkeypatch.setattr(Path, "mkdir", full)
    photo = next(iter(session.project.photos))
    assert client.get(f"/thumbnails/{photo}.jpg").status_code == 200  # only not kept
    answer = put(client, pattern(0, 100), "new.png")
    assert answer.status_code == 507
    assert "No space left" in answer.json()["error"]


def test_a_photo_that_became_a_fifo_blocks_nothing(client: TestClient, session: Session) -> None:
    photo = next(iter(session.project.photos.values()))
    photo.path.unlink()
    os.mkfifo(photo.path)
    for route in ("thumbnails", "large"):
        assert client.get(f"/{route}/{photo.id}.jpg").status_code == 400


@pytest.fixture
def port(session: Session) -> Iterator[int]:
    """The port of a real server, with a second for each request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        server, _ = module.make_server(session, port)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield port
        server.should_exit = True
        thread.join()


def answer_of(connection: socket.socket) -> bytes:
    """Send a request without the secret, and return the status line."""
    connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(module.REFUSED.encode()):
        received = connection.recv(1000)
        assert received, answer
        answer += received
    return answer.split(b"\r\n")[0]


def test_idle_connections_do_not_lock_out_the_browser(
    port: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as opened:
        idle = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(300)
        ]
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            assert answer_of(connection) == b"HTTP/1.1 403 Forbidden"
            assert answer_of(connection) == b"HTTP/1.1 403 Forbidden"  # it is kept open
        assert idle[0].recv(1000).startswith(b"HTTP/1.1 503")  # it has waited longest
    assert sum(record.name == "nearshot.app.connections" for record in caplog.records) == 1
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_connection_without_a_request_is_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_A_REQUEST", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        with suppress(ConnectionError):  # a header a little at a time
            for _ in range(100):
                connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n"[:1])
                time.sleep(0.05)
                if select.select([connection], [], [], 0)[0]:
                    break
        with suppress(ConnectionError):
            assert connection.recv(100) == b""


def test_names_of_many_bytes_are_kept(client: TestClient) -> None:
    answer = put(client, pattern(0, 100), "😀" * 100 + ".png", "😀" * 100)
    assert answer.status_code == 200


def test_hostile_names_are_only_text(client: TestClient, session: Session) -> None:
    """In JSON; the page shows them as text. In the table, they are no formulas."""
    assert client.post("/api/add-class", json={"name": ATTACK}).json()["result"] == ATTACK
    assert client.post("/api/add-class", json={"name": "=cmd()"}).status_code == 200
    put(client, pattern(0, 100), "<b onclick=alert(1)>.png")
    ids = list(session.project.photos)
    client.post("/api/label", json={"labels": {ids[0]: "=cmd()"}})
    state = client.get("/api/state")
    assert state.headers["content-type"] == "application/json"
    assert ATTACK in state.json()["classes"]
    rows = list(
        csv.DictReader(io.StringIO(client.get("/export/photos.csv").content.decode("utf-8-sig")))
    )
    assert [row["label"] for row in rows].count("'=cmd()") == 1
    copied = client.post("/api/copy", json={"predicted": False}).json()
    assert (copied["new"], copied["failures"]) == (1, [])
    assert [path.name for path in (session.project.folder / "sorted").iterdir()] == ["=cmd()"]


def test_images_are_sent_as_new_jpegs(client: TestClient, session: Session) -> None:
    photo = next(iter(session.project.photos))
    for route in ("thumbnails", "large"):
        answer = client.get(f"/{route}/{photo}.jpg")
        assert answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).format == "JPEG"


def test_labels_make_predictions_and_corrections_change_them(
    client: TestClient, session: Session
) -> None:
    wait_until_idle(session)
    state = client.get("/api/state").json()
    assert state["n_done"] == len(state["photos"]) == 18
    assert "missing" in state["estimate"]
    assert len(state["next"]) == 18
    ids = {row[1]: row[0] for row in state["photos"]}
    for name in ("ant", "bee", "cat"):
        client.post("/api/add-class", json={"name": name})
        labels = {ids[f"{name}{i}.png"]: name for i in range(4)}
        answer = client.post("/api/label", json={"labels": labels})
    client.get(f"/api/state?after={answer.json()['version']}")  # waits for the new answers
    wait_until_idle(session)
    state = client.get("/api/state").json()
    answers = {row[1]: state["classes"][row[4]] for row in state["photos"] if row[3] == -1}
    assert answers == {
        "ant4.png": "ant",
        "ant5.png": "ant",
        "bee4.png": "bee",
        "bee5.png": "bee",
        "cat4.png": "cat",
        "cat5.png": "cat",
    }
    assert state["estimate"]["mean"] == 1
    assert state["estimate"]["low"] < 1
    assert np.trace(state["confusion"]["counts"]) == 12
    client.post("/api/label", json={"labels": {ids["ant0.png"]: "bee"}})
    wait_until_idle(session)
    assert list(client.get("/api/state").json()["suspicious"]) == [ids["ant0.png"]]
    client.post("/api/confirm", json={"ids": [ids["ant0.png"]]})
    assert client.get("/api/state").json()["suspicious"] == {}
    for removed, n_left in ((True, 17), (False, 18)):
        client.post("/api/remove", json={"ids": [ids["ant0.png"]], "removed": removed})
        assert len(client.get("/api/state").json()["photos"]) == n_left
    assert client.get(f"/api/photos/{ids['ant5.png']}").json()["probabilities"][0][0] == "ant"


def test_exports(client: TestClient, session: Session, tmp_path: Path) -> None:
    # Nothing is labelled yet.
    assert client.get("/export/classifier.safetensors").status_code == 400
    label_all(session, 0, 1, 2)
    answer = client.get("/export/classifier.safetensors")
    assert answer.headers["content-disposition"] == 'attachment; filename="classifier.safetensors"'
    (tmp_path / "c.safetensors").write_bytes(answer.content)
    classifier = FewShotClassifier.load(tmp_path / "c.safetensors")
    assert classifier.predict([tmp_path / "photos" / "bee5.png"]).tolist() == ["bee"]
    for predicted, expected in ((False, 9), (True, 18), (True, 18)):
        copied = client.post("/api/copy", json={"predicted": predicted}).json()
        assert copied["new"] + copied["same"] == expected
    assert copied["earlier"] == ""
    names = [path.relative_to(copied["folder"]) for path in Path(copied["folder"]).rglob("*.png")]
    assert len(names) == 18
    assert all(name.parent.name in (name.name[:3], "none of these") for name in names)
    rows = list(
        csv.DictReader(io.StringIO(client.get("/export/photos.csv").content.decode("utf-8-sig")))
    )
    assert len(rows) == 18
    assert {row["label"] for row in rows} == {"ant", "bee", "cat", ""}
    assert all(bool(row["label"]) != bool(row["predicted"]) for row in rows)
    assert {row["photo"][:10] for row in rows} == {"../photos/"}  # relative to the project


def test_a_table_of_labels_comes_back(client: TestClient, session: Session) -> None:
    label_all(session, 0, 1)
    labels = dict(session.project.labels)
    table = client.get("/export/photos.csv").content
    client.post("/api/label", json={"labels": dict.fromkeys(session.project.photos)})
    assert not session.project.labels
    answer = client.put("/api/labels", content=table).json()
    assert answer == {"labelled": 6, "kept": 0, "missing": []}
    assert session.project.labels == labels
    # One action.
    assert client.post("/api/undo", json={}).json()["result"]["title"].startswith("label 6 photos")
    assert not session.project.labels


@pytest.mark.parametrize(
    "table",
    [
        "file;class\nant0.png;wasp\nphotos/ant1.png;wasp\nnowhere.png;wasp\nbee0.png;bee\n",
        "Path,Other,Category\r\nC:\\photos\\ant0.png,,wasp\r\n../photos/ant1.png,x,wasp\r\n"
        "nowhere.png,,wasp\r\nbee0.png,,bee\r\n\r\nant2.png\r\n",
    ],
)
def test_a_table_labels_photos_without_a_label(
    table: str, client: TestClient, session: Session
) -> None:
    label_all(session, 1)
    by_hand = next(photo for photo in session.project.present if photo.name == "ant1.png")
    answer = client.put("/api/labels", content=table.encode()).json()
    # C:/photos/ant0.png ends like no photo of this project.
    n_labelled = 2 if ";" in table else 1
    assert (answer["labelled"], answer["kept"]) == (n_labelled, 1)
    assert "nowhere.png" in answer["missing"]
    assert session.project.label_of(by_hand) == "ant"


@pytest.mark.parametrize("table", [b"", b"a,b\n1,2\n", b"photo\nant0.png\n", b"\xff\xfe\x00"])
def test_other_tables_are_refused(table: bytes, client: TestClient, session: Session) -> None:
    answer = client.put("/api/labels", content=table)
    assert answer.status_code == 400
    assert "table" in answer.json()["error"]
    assert not session.project.labels


@pytest.mark.slow
def test_the_exported_onnx_file_gives_the_same_answers(session: Session, photos: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    label_all(session, 0, 1, 2)
    network = onnxruntime.InferenceSession(export_onnx_file(session))
    image = np.asarray(Image.open(photos / "cat4.png"))
    labels = network.run(["label"], {"images": image[None]})[0]
    assert labels.tolist() == ["cat"]


def test_a_request_waits_for_a_newer_state_only(
    client: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until_idle(session)
    monkeypatch.setattr(module, "MAX_POLLS", 3)
    begun = time.monotonic()
    assert client.get(f"/api/state?after={session.version}").json()["version"] == session.version
    assert time.monotonic() - begun > 0.2
    begun = time.monotonic()
    assert (
        json.loads(client.get(f"/api/state?after={session.version - 1}").content)["version"]
        == session.version
    )
    assert client.get("/api/state?after=-1").status_code == 200
    assert time.monotonic() - begun < 5


def test_a_more_accurate_backbone_is_offered_and_used(
    client: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.safetensors"
    save_backbone(conv4(), weights)
    pair = f"{weights}+{weights}"
    monkeypatch.setattr("nearshot.app.session.MORE_ACCURATE", pair)
    monkeypatch.setattr("nearshot.app.session.installed_backbones", lambda: [pair])
    monkeypatch.setattr(module, "MORE_ACCURATE", pair)
    assert client.get("/api/offer").status_code == 400  # there are no labels
    label_all(session, 0, 1, 2)
    offer = client.get("/api/offer").json()
    for choice in (offer["present"], offer["offered"]):
        assert 0 <= choice["accuracy"] <= 1
        assert choice["speed"] > 0
    assert client.post("/api/offer", json={}).status_code == 200
    assert len(session.embedder.networks) == 2
    monkeypatch.setattr("nearshot.app.session.installed_backbones", list)
    assert client.get("/api/offer").json() is None
