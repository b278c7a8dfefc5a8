"""Every layout of every dataset, written by the test and read back; and the real datasets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.layouts import (
    class_folders,
    encoded,
    picture,
    python2_pickle,
    tar_bytes,
    write_folder,
    write_tar,
    write_zip,
)

from nearshot.data.datasets import SOURCES, plan_folder, plan_omniglot, tiny_tiered
from nearshot.data.datasets.source import Plan, standard_splits
from nearshot.data.preparation import prepare, prepare_plan
from nearshot.data.readers import open_files
from nearshot.data.store import Store
from nearshot.errors import FileFormatError, InputError

SHARED = Path(__file__).parents[3] / "shared" / "data"
SPLITS = ("train", "val", "test")


def all_classes(dataset: str) -> list[str]:
    splits = standard_splits(dataset)
    return [*splits["train"], *splits["val"], *splits["test"]]


def pixels_by_name(stores: dict[str, Store]) -> dict[tuple[str, str], bytes]:
    """The pixels of each image, by the name of its class and its own."""
    pixels = {}
    for store in stores.values():
        rows = zip(store.images, store.labels, store.image_names, strict=True)
        for image, label, name in rows:
            pixels[store.class_names[int(label)], name] = image.tobytes()
    return pixels


def sizes_of(stores: dict[str, Store]) -> list[tuple[int, int]]:
    """The images and classes of each split."""
    return [(len(stores[split]), len(stores[split].class_names)) for split in SPLITS]


@pytest.mark.parametrize(
    ("dataset", "sizes"),
    [
        ("cifar-fs", (64, 16, 20)),
        ("mini-imagenet", (64, 16, 20)),
        ("tiered-imagenet", (351, 97, 160)),
        ("tiny-tiered", (61, 17, 45)),
        ("omniglot-vinyals", (1028, 172, 423)),
    ],
)
def test_the_built_in_splits_have_their_sizes_and_share_no_class(
    dataset: str, sizes: tuple[int, ...]
) -> None:
    splits = standard_splits(dataset)
    assert tuple(len(splits[split]) for split in SPLITS) == sizes
    names = all_classes(dataset)
    assert len(set(names)) == sum(sizes)
    assert all(name and name == name.strip() for name in names)


def cifar_members() -> dict[str, bytes]:
    return class_folders(all_classes("cifar-fs"), prefix="cifar100/data/")


def check_cifar(stores: dict[str, Store]) -> None:
    assert sizes_of(stores) == [(128, 64), (32, 16), (40, 20)]
    for split, store in stores.items():
        assert set(store.class_names) == set(standard_splits("cifar-fs")[split])
        assert store.images.shape[1:] == (32, 32, 3)


def test_cifar_fs_zip(tmp_path: Path) -> None:
    members = cifar_members() | {"cifar100/splits/bertinetto/train.txt": b"apple\n"}
    stores = prepare(
        "cifar-fs", write_zip(tmp_path / "cifar100.zip", members), data_dir=tmp_path / "d"
    )
    check_cifar(stores)
    parts = [write_zip(tmp_path / f"{i}.zip", dict(list(members.items())[i::3])) for i in range(3)]
    in_parts = prepare("cifar-fs", parts, data_dir=tmp_path / "a")
    assert [in_parts[s].fingerprint for s in SPLITS] == [stores[s].fingerprint for s in SPLITS]
    part = write_zip(tmp_path / "part.zip", dict(list(members.items())[:50]))
    with pytest.raises(FileFormatError, match="lacks .* classes of CIFAR-FS: .* more"):
        prepare("cifar-fs", part, data_dir=tmp_path)
    with pytest.raises(InputError, match="'cifar'.* 'glyphs', 'cifar-fs'"):
        prepare("cifar", parts)
    seeds = {path: seed for seed, path in enumerate(cifar_members())}
    for (name, path), data in pixels_by_name(stores).items():
        assert data == picture(seeds[path]).tobytes()
        assert path.split("/")[-2] == name


def test_cifar_fs_from_the_pickles_of_cifar_100(tmp_path: Path) -> None:
    names = sorted(all_classes("cifar-fs"))
    rows = np.stack([picture(i).transpose(2, 0, 1).ravel() for i in range(200)])
    parts = {}
    for part, start in (("train", 0), ("test", 100)):
        files = [f"{name}_{part}.png" for name in names]
        content = {
            "data": rows[start : start + 100],
            "fine_labels": list(range(100)),
            "filenames": files,
        }
        parts[f"cifar-100-python/{part}"] = python2_pickle(content)
    parts["cifar-100-python/meta"] = python2_pickle({"fine_label_names": names})
    stores = prepare(
        "cifar-fs", write_tar(tmp_path / "cifar.tar.gz", parts), data_dir=tmp_path / "d"
    )
    check_cifar(stores)
    label = names.index("apple")
    images = pixels_by_name(stores)
    assert images["apple", "apple/apple_train.png"] == picture(label).tobytes()
    assert images["apple", "apple/apple_test.png"] == picture(100 + label).tobytes()
    parts["cifar-100-python/meta"] = python2_pickle({"names": names})
    with pytest.raises(
        FileFormatError,
        match="other.tar does not have the content of 'cifar-fs': .*fine_label_names",
    ):
        prepare("cifar-fs", write_tar(tmp_path / "other.tar", parts), data_dir=tmp_path / "d")


def by_table(split: str, names: list[str]) -> dict[str, bytes]:
    files: dict[str, str] = {}
    for name in names:
        files |= {f"{name}{i:08}.jpg": name for i in range(2)}
    table = "\n".join(["filename,label", *(f"{file},{name}" for file, name in files.items())])
    photo = encoded(picture(0, 90, 120), "JPEG")
    return {f"images/{file}": photo for file in files} | {f"{split}.csv": table.encode()}


def by_cache(split: str, names: list[str]) -> dict[str, bytes]:
    images = np.stack([picture(i, 84) for i in range(2 * len(names))])
    classes = {name: [2 * i, 2 * i + 1] for i, name in enumerate(names)}
    content = {"image_data": images, "class_dict": classes}
    return {f"mini-imagenet-cache-{split}.pkl": python2_pickle(content)}


def by_category(split: str, names: list[str]) -> dict[str, bytes]:
    first_label = {"train": 0, "val": 64, "test": 80}[split]
    labels = [first_label + k for k in range(len(names))] * 2
    content = {"data": np.stack([picture(label, 84) for label in labels]), "labels": labels}
    phase = "train_phase_train" if split == "train" else split
    return {f"miniImageNet_category_split_{phase}.pickle": python2_pickle(content)}


def in_tars(split: str, names: list[str]) -> dict[str, bytes]:
    more = ["n99999999"] if split == "test" else []  # ILSVRC has 900 classes more
    photo = encoded(picture(0, 90), "JPEG")
    archives = {}
    for name in [*names, *more]:
        photos = {f"{name}_{i}.JPEG": photo for i in range(2)}
        archives[f"{name}.tar"] = tar_bytes(photos)
    return archives


@pytest.mark.parametrize("layout", [by_table, by_cache, by_category, in_tars])
def test_mini_imagenet(
    tmp_path: Path, layout: Callable[[str, list[str]], dict[str, bytes]]
) -> None:
    classes = standard_splits("mini-imagenet")
    members: dict[str, bytes] = {}
    for split, names in classes.items():
        members |= layout(split, names)
    if layout is in_tars:
        source = write_tar(tmp_path / "m.tar", members)
    else:
        source = write_folder(tmp_path / "m", members)
    stores = prepare("mini-imagenet", source, data_dir=tmp_path / "d")
    assert sizes_of(stores) == [(128, 64), (32, 16), (40, 20)]
    assert all(store.images.shape[1:] == (84, 84, 3) for store in stores.values())
    if layout is by_category:
        assert stores["val"].class_names[0] == "category 064"
        assert stores["val"].images[0].tobytes() == picture(64, 84).tobytes()
    else:
        assert set(stores["val"].class_names) == set(classes["val"])
    if layout is by_cache:
        name = classes["test"][3]
        assert pixels_by_name(stores)[name, f"{name}/7"] == picture(7, 84).tobytes()
    if layout is by_table:
        del members[f"images/{classes['val'][0]}00000001.jpg"]
        archive = write_zip(tmp_path / "m.zip", members)
        with pytest.raises(FileFormatError, match=r"val.csv in .* lists .*00000001.jpg'"):
            prepare("mini-imagenet", archive, data_dir=tmp_path / "e")


def test_all_of_ilsvrc(tmp_path: Path) -> None:
    """tieredImageNet takes all images of its classes; miniImageNet 600, and says so."""
    small = encoded(picture(0, 8))
    members: dict[str, bytes] = {}
    for name in all_classes("mini-imagenet"):
        members |= {f"{name}/{i:04}.png": small for i in range(2)}
    name = standard_splits("mini-imagenet")["val"][0]
    members |= {f"{name}/{i:04}.png": small for i in range(610)}
    plan = SOURCES["mini-imagenet"].plan(open_files(write_zip(tmp_path / "m.zip", members)))
    assert "not Ravi and Larochelle's choice" in plan.layout
    assert len(plan.splits["val"]) == 600 + 15 * 2
    members = {f"{name}/0.png": small for name in all_classes("tiered-imagenet")}
    plan = SOURCES["tiered-imagenet"].plan(open_files(write_zip(tmp_path / "t.zip", members)))
    assert [len(plan.splits[s]) for s in SPLITS] == [351, 97, 160]


def test_tiered_imagenet_pickles(tmp_path: Path) -> None:
    members = {}
    for split, n_classes in (("train", 5), ("val", 3), ("test", 4)):
        labels = np.tile(np.arange(n_classes), 2)
        images = [np.frombuffer(encoded(picture(i, 84)), np.uint8) for i in range(len(labels))]
        members[f"{split}_images_png.pkl"] = python2_pickle(images)
        names = [f"{split} class {k}" for k in range(n_classes)]
        content = {"label_specific": labels, "label_specific_str": names}
        members[f"{split}_labels.pkl"] = python2_pickle(content)
    stores = prepare(
        "tiered-imagenet", write_folder(tmp_path / "t", members), data_dir=tmp_path / "d"
    )
    assert sizes_of(stores) == [(10, 5), (6, 3), (8, 4)]
    assert pixels_by_name(stores)["val class 1", "val_images_png.pkl/4"] == picture(4, 84).tobytes()


def tiny_imagenet() -> dict[str, bytes]:
    """The official layout, with one image instead of 500 and 50, and classes of no split."""
    photo = encoded(picture(0, 64), "JPEG")
    members: dict[str, bytes] = {}
    lines = []
    for number, wnid in enumerate([*all_classes("tiny-tiered"), "n00000001"]):
        members[f"tiny-imagenet-200/train/{wnid}/images/{wnid}_0.JPEG"] = photo
        members[f"tiny-imagenet-200/train/{wnid}/{wnid}_boxes.txt"] = b"0 0 63 63"
        members[f"tiny-imagenet-200/val/images/val_{number}.JPEG"] = photo
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63")
    members["tiny-imagenet-200/test/images/test_0.JPEG"] = photo
    members["tiny-imagenet-200/val/val_annotations.txt"] = "\n".join(lines).encode()
    return members


@pytest.fixture
def one_image_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_tiered, "TRAINING_IMAGES", 1)
    monkeypatch.setattr(tiny_tiered, "VALIDATION_IMAGES", 1)


@pytest.mark.usefixtures("one_image_a_class")
def test_tiny_tiered_uses_the_labelled_images_of_its_classes(tmp_path: Path) -> None:
    members = tiny_imagenet()
    archive = write_zip(tmp_path / "tiny-imagenet-200.zip", members)
    stores = prepare("tiny-tiered", archive, data_dir=tmp_path / "d")
    assert sizes_of(stores) == [(122, 61), (34, 17), (90, 45)]
    for split, store in stores.items():
        assert set(store.class_names) == set(standard_splits("tiny-tiered")[split])
        assert store.images.shape[1:] == (64, 64, 3)
    folder = write_folder(tmp_path / "folder", members)
    for place in (folder, folder / "tiny-imagenet-200"):
        unpacked = prepare("tiny-tiered", place, data_dir=tmp_path / "e")
        assert [unpacked[s].fingerprint for s in SPLITS] == [stores[s].fingerprint for s in SPLITS]


ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"


def without_a_class(members: dict[str, bytes]) -> None:
    wnid = standard_splits("tiny-tiered")["val"][0]
    for path in [path for path in members if f"/{wnid}/" in path]:
        del members[path]


def with_an_image_more(members: dict[str, bytes]) -> None:
    wnid = standard_splits("tiny-tiered")["test"][0]
    folder = f"tiny-imagenet-200/train/{wnid}/images"
    members[f"{folder}/{wnid}_1.JPEG"] = members[f"{folder}/{wnid}_0.JPEG"]


def without_an_annotated_file(members: dict[str, bytes]) -> None:
    del members["tiny-imagenet-200/val/images/val_3.JPEG"]


def with_a_line_twice(members: dict[str, bytes]) -> None:
    members[ANNOTATIONS] += b"\n" + members[ANNOTATIONS].split(b"\n")[0]


def without_a_line(members: dict[str, bytes]) -> None:
    members[ANNOTATIONS] = members[ANNOTATIONS].split(b"\n", 1)[1]


def without_tabs(members: dict[str, bytes]) -> None:
    members[ANNOTATIONS] = members[ANNOTATIONS].replace(b"\t", b" ")


def without_annotations(members: dict[str, bytes]) -> None:
    del members[ANNOTATIONS]


@pytest.mark.usefixtures("one_image_a_class")
@pytest.mark.parametrize(
    "damage",
    [
        without_a_class,
        with_an_image_more,
        without_an_annotated_file,
        with_a_line_twice,
        without_a_line,
        without_tabs,
        without_annotations,
    ],
)
def test_a_damaged_tiny_imagenet_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, bytes]], None]
) -> None:
    members = tiny_imagenet()
    damage(members)
    with pytest.raises(FileFormatError):
        prepare("tiny-tiered", write_folder(tmp_path / "damaged", members), data_dir=tmp_path / "d")
    assert not list((tmp_path / "d").rglob("*.npy"))


def omniglot(tmp_path: Path) -> list[Path]:
    members: dict[str, dict[str, bytes]] = {"images_background": {}, "images_evaluation": {}}
    for seed, name in enumerate(all_classes("omniglot-vinyals")):
        members[name.split("/")[0]][f"{name}/{seed:04}_01.png"] = encoded(picture(seed, 5))
    return [write_zip(tmp_path / f"{half}.zip", content) for half, content in members.items()]


def test_omniglot_splits_and_rotations(tmp_path: Path) -> None:
    files = open_files(omniglot(tmp_path))
    assert [len(plan_omniglot(files).splits[s]) for s in SPLITS] == [1028, 172, 423]
    background = plan_omniglot(files, split="background")
    assert {s: len(p) for s, p in background.splits.items()} == {"train": 964, "test": 659}
    with pytest.raises(InputError, match="split .* 'lake'"):
        plan_omniglot(files, split="lake")  # type: ignore[arg-type]
    plan = plan_omniglot(files, rotations=True)
    assert [len(plan.splits[s]) for s in SPLITS] == [4 * 1028, 4 * 172, 4 * 423]
    plan = plan._replace(splits={"val": plan.splits["val"][:8]})
    store = prepare_plan("omniglot", plan, side=5, data_dir=tmp_path / "d")["val"]
    assert len(store.class_names) == 8
    turned = dict(zip(store.class_names, store.images, strict=True))
    plain = store.class_names[0]
    for quarter in (1, 2, 3):
        assert np.array_equal(
            turned[f"{plain} turned {90 * quarter} degrees"], np.rot90(turned[plain], quarter)
        )


ANIMALS = [f"animal {i}" for i in range(10)]


def classes_of(plan: Plan) -> dict[str, set[str]]:
    return {split: {image.class_name for image in images} for split, images in plan.splits.items()}


def test_a_folder_is_split_at_random_the_same_everywhere(tmp_path: Path) -> None:
    files = open_files(write_folder(tmp_path / "f", class_folders(ANIMALS)))
    packed = open_files(write_zip(tmp_path / "f.zip", class_folders(ANIMALS, prefix="deep/er/")))
    first = classes_of(plan_folder(files))
    assert [len(first[split]) for split in SPLITS] == [6, 2, 2]
    assert set().union(*first.values()) == set(ANIMALS)
    assert classes_of(plan_folder(packed)) == first
    assert classes_of(plan_folder(files, seed=1)) != first


def test_a_folder_by_table_and_by_its_own_splits(tmp_path: Path) -> None:
    members = class_folders(ANIMALS)
    rows = ["file,label"]
    for i, name in enumerate(members):
        rows.append(f"{name},{'odd' if i % 2 else 'even'}")
    table = {"labels.csv": "\n".join(rows).encode()}
    files = open_files(write_folder(tmp_path / "t", members | table))
    plan = plan_folder(files, table="labels.csv", fractions={"train": 0.5, "test": 0.5})
    assert {split: len(images) for split, images in plan.splits.items()} == {
        "train": 10,
        "test": 10,
    }
    assert set().union(*classes_of(plan).values()) == {"even", "odd"}
    own = class_folders(ANIMALS[:3], prefix="train/") | class_folders(ANIMALS[3:5], prefix="test/")
    plan = plan_folder(open_files(write_zip(tmp_path / "own.zip", own)))
    assert {s: len(ps) for s, ps in plan.splits.items()} == {"train": 6, "test": 4}


def test_bad_folders(tmp_path: Path) -> None:
    files = open_files(write_folder(tmp_path / "f", class_folders(ANIMALS)))
    with pytest.raises(FileFormatError, match="'unicorn'"):
        plan_folder(files, classes={"train": ["unicorn"]})
    with pytest.raises(FileFormatError, match="0 classes"):
        plan_folder(open_files(write_folder(tmp_path / "empty", {"readme.txt": b""})))
    with pytest.raises(InputError, match="has no table"):
        plan_folder(files, table="nowhere.csv")
    for content, message in (
        (b"file,label\nx.png,a", "Line 2 of t.csv .* 'x.png'"),
        (b"a,b\n1,2", "needs the columns"),
    ):
        folder = write_folder(tmp_path / "bad", class_folders(ANIMALS) | {"t.csv": content})
        with pytest.raises(FileFormatError, match=message):
            plan_folder(open_files(folder), table="t.csv")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real datasets beside the checkout")
def test_the_real_cifar_fs_and_omniglot(tmp_path: Path) -> None:
    stores = prepare("cifar-fs", sorted((SHARED / "cifar-fs").glob("*.zip")), data_dir=tmp_path)
    assert [len(stores[s]) for s in SPLITS] == [38_400, 9_600, 12_000]
    groups = np.unique(np.concatenate([stores[s].hashes for s in SPLITS]), axis=0)
    assert len(groups) < 60_000  # CIFAR-100 has images that occur twice
    stores = prepare("omniglot", sorted((SHARED / "omniglot").glob("*.zip")), data_dir=tmp_path)
    assert sum(len(stores[s].class_names) for s in SPLITS) == 1_623
