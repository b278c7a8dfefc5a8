"""Files of tensors: the same content gives the same bytes, and other programs read them."""

import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given
from safetensors import safe_open

from nearshot.errors import FileFormatError
from nearshot.io import CHECKSUM, read_json, read_tensors, write_json, write_tensors


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_the_same_content_in_another_order_is_the_same_file(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    tensors = {f"tensor {i}": torch.arange(i).to(dtype) for i in range(5)} | {
        "odd": torch.ones(3, dtype=torch.uint8)
    }
    metadata = {f"name {i}": str(i) for i in range(10)}
    write_tensors(tmp_path / "one", tensors, metadata)
    backwards = dict(reversed(tensors.items())), dict(reversed(metadata.items()))
    write_tensors(tmp_path / "other", *backwards)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    read = safetensors.torch.load_file(tmp_path / "one")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text != CHECKSUM)


@given(
    metadata=st.dictionaries(TEXTS, TEXTS), name=TEXTS.filter(lambda name: name != "__metadata__")
)
def test_whatever_the_texts_the_library_reads_them(
    metadata: dict[str, str], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("files") / "file.safetensors"
    write_tensors(path, {name: torch.arange(3.0)}, metadata)
    with safe_open(path, "pt") as file:
        assert file.metadata().items() >= metadata.items()
        assert torch.equal(file.get_tensor(name), torch.arange(3.0))
    assert read_tensors(path)[0] == metadata
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 8 == 0


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """All but those in the checksum's own name, without which a file has no checksum."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"one": torch.arange(3.0), "other": torch.ones(2, 2)}, {"format": "mine"})
    content = path.read_bytes()
    name = range(content.index(CHECKSUM.encode()), content.index(CHECKSUM.encode()) + len(CHECKSUM))
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            if place in name:
                continue
            with pytest.raises(FileFormatError, match="file.safetensors"):
                read_tensors(path)


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    safetensors.torch.save_file({"one": torch.arange(3.0)}, tmp_path / "theirs", {"format": "pt"})
    metadata, tensors = read_tensors(tmp_path / "theirs")
    assert metadata == {"format": "pt"}
    assert torch.equal(tensors["one"], torch.arange(3.0))


def test_json_keeps_names_that_are_not_utf8(tmp_path: Path) -> None:
    content = {os.fsdecode(b"caf\xe9"): "日本", "class": "é"}
    write_json(tmp_path / "names.json", content)
    assert read_json(tmp_path / "names.json") == content


def test_json_may_be_edited_unless_it_has_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for checksum in (False, True):
        write_json(path, {"epochs": 3}, checksum=checksum)
        path.write_text(path.read_text().replace("3", "4", 1))
        if checksum:
            with pytest.raises(FileFormatError, match="file.json"):
                read_json(path)
        else:
            assert read_json(path) == {"epochs": 4}
