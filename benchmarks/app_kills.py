"""Kill `nearshot app` at random moments while a script labels through the page's own requests.

    python benchmarks/app_kills.py --kills 50

Each time, the server starts on the same project. The script labels batches of photos, adds photos
and takes actions back, one request after another, until a timer kills the process (SIGKILL). After
the next start the project must equal what was acknowledged, or that with the one request that had
no answer yet; undo must reach what was done before the kill. Anything else ends the script with an
error. Writes benchmarks/results/app-kills.json and .md.
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from nearshot.models import build_backbone, save_backbone

RESULTS = Path(__file__).parent / "results"
CLASSES = ("ant", "bee", "cat")
N_PHOTOS = 60
LONGEST_RUN = 1.5  # seconds from the first request to the kill

Labels = dict[str, str]  # of labelled photos, by identifier


@dataclass
class Counts:
    """What happened in all runs."""

    kills: int = 0
    acknowledged: int = 0
    labels: int = 0
    undone: int = 0
    uploads: int = 0
    cut_and_kept: int = 0  # requests without an answer whose entry was written
    cut_and_lost: int = 0


@dataclass
class Expected:
    """What was acknowledged: the labels and the number of photos after each action."""

    states: list[tuple[Labels, int]] = field(default_factory=list)


class Client:
    """The page's requests to a server whose address is known."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host = parts.netloc
        self.base = parts.path
        self.connection = http.client.HTTPConnection(self.host, timeout=60)

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON of an answer."""
        headers = {"Origin": f"http://{self.host}"}
        self.connection.request(method, f"{self.base}{path}", body, headers)
        answer = self.connection.getresponse()
        content = json.loads(answer.read())
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {content}")
        return content

    def post(self, name: str, content: dict[str, Any]) -> Any:
        """Ask for a change."""
        return self.ask("POST", f"api/{name}", json.dumps(content).encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="default: 50")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    counts = Counts()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_photos(folder / "photos")
        save_backbone(build_backbone("conv4").eval(), folder / "weights.safetensors")
        process, address = start(folder)
        client = Client(address)
        for name in CLASSES:
            client.post("add-class", {"name": name})
        expected = Expected([state_of(client)])
        end(process)
        pending: tuple[Labels, int] | None = None
        for _ in range(options.kills):
            process, address = start(folder)
            client = Client(address)
            expected = check(expected, pending, state_of(client), counts)
            pending = label_until_killed(client, process, expected, rng, counts)
            counts.kills += 1
            print(f"{counts.kills} kills, {counts.acknowledged:,} acknowledged", flush=True)
        process, address = start(folder)
        check(expected, pending, state_of(Client(address)), counts)
        end(process)
    report = vars(counts)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "app-kills.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "app-kills.md").write_text(markdown(counts))
    print(markdown(counts))


def write_photos(folder: Path) -> None:
    folder.mkdir()
    for number in range(N_PHOTOS):
        (folder / f"{number}.png").write_bytes(photo(number))


def photo(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def start(folder: Path) -> tuple["subprocess.Popen[str]", str]:
    """Start the command and return its process and the address that it prints."""
    command = [sys.executable, "-m", "nearshot", "app", str(folder / "photos")]
    command += ["--backbone", str(folder / "weights.safetensors"), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout or ():
        match = re.search(r"http://\S+", line)
        if match:
            return process, match.group()
    raise AssertionError("nearshot app ended before it printed its address")


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a process and wait for its end."""
    process.kill()
    process.communicate()


def state_of(client: Client) -> tuple[Labels, int]:
    """Return the labels that the page shows, and how many photos."""
    state = client.ask("GET", "api/state")
    labels = {row[0]: state["classes"][row[3]] for row in state["photos"] if row[3] >= 0}
    return labels, len(state["photos"])


def check(
    expected: Expected,
    pending: tuple[Labels, int] | None,
    state: tuple[Labels, int],
    counts: Counts,
) -> Expected:
    """Return what is expected from now on; another state than the two allowed is an error."""
    if state == expected.states[-1]:
        counts.cut_and_lost += int(pending is not None)
        return expected
    if state != pending:
        raise AssertionError(f"{state} is neither {expected.states[-1]} nor {pending}")
    counts.cut_and_kept += 1
    if len(expected.states) > 1 and state == expected.states[-2]:
        return Expected(expected.states[:-1])  # it was an undo
    return Expected([*expected.states, state])


def label_until_killed(
    client: Client,
    process: "subprocess.Popen[str]",
    expected: Expected,
    rng: random.Random,
    counts: Counts,
) -> tuple[Labels, int] | None:
    """Send requests until the process is killed; return what the last one would have led to."""
    names = {f"{number}.png" for number in range(N_PHOTOS)}  # uploads may be taken back
    ids = [row[0] for row in client.ask("GET", "api/state")["photos"] if row[1] in names]
    timer = threading.Timer(rng.uniform(0, LONGEST_RUN), process.kill)
    timer.start()
    pending: tuple[Labels, int] | None = None
    try:
        while True:
            labels, n_photos = expected.states[-1]
            action = rng.random()
            if action < 0.15 and len(expected.states) > 1:
                pending = expected.states[-2]
                client.post("undo", {})
                expected.states.pop()
                counts.undone += 1
            elif action < 0.25:
                pending = (labels, n_photos + 1)
                name = f"{rng.getrandbits(60):x}.png"
                client.ask("PUT", f"api/photos?name={name}", photo(rng.getrandbits(30)))
                expected.states.append(pending)
                counts.uploads += 1
            else:
                chosen = {photo: rng.choice(CLASSES) for photo in rng.sample(ids, 5)}
                pending = (labels | chosen, n_photos)
                if pending == expected.states[-1]:
                    continue  # nothing changes, so that there is no entry
                client.post("label", {"labels": chosen})
                expected.states.append(pending)
                counts.labels += len(chosen)
            counts.acknowledged += 1
            pending = None
    except (OSError, http.client.HTTPException):
        pass
    timer.join()
    process.communicate()
    return pending


def markdown(counts: Counts) -> str:
    """Return the table of the counts."""
    rows = [
        ("kills", counts.kills),
        ("requests acknowledged", counts.acknowledged),
        ("labels given by them", counts.labels),
        ("photos added", counts.uploads),
        ("actions taken back", counts.undone),
        ("acknowledged, and missing after the kill", 0),
        ("cut off by a kill: done", counts.cut_and_kept),
        ("cut off by a kill: not done", counts.cut_and_lost),
    ]
    lines = [f"| {name} | {number:,} |" for name, number in rows]
    return "\n".join(["| | |", "|---|---:|", *lines]) + "\n"


if __name__ == "__main__":
    main()
