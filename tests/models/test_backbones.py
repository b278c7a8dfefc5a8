"""Every backbone in the registry, by parametrisation; and what is special about some of them."""

import importlib.util
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.errors import FileFormatError, InputError, MissingExtraError
from nearshot.models import BACKBONES, Backbone, build_backbone, load_backbone
from nearshot.models.kernels import can_fuse, fuse
from nearshot.models.kernels.ops import kernels_run
from nearshot.models.layers import DropBlock, fold_batch_norms
from nearshot.models.timm import TimmBackbone

every_backbone = pytest.mark.parametrize("name", BACKBONES)
HAS_TIMM = importlib.util.find_spec("timm") is not None
needs_timm = pytest.mark.skipif(not HAS_TIMM, reason="needs the extra timm")


def images(n: int = 2, side: int = 32, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@every_backbone
def test_embeds_each_image_to_its_dimension(name: str) -> None:
    backbone = build_backbone(name, input_size=16).eval()
    together = backbone(images(6, side=16))
    assert together.shape == (6, backbone.embedding_dim)
    assert (backbone.spec.name, backbone.spec.input_size) == (name, 16)
    torch.testing.assert_close(backbone(images(6, side=16)[:1]), together[:1], rtol=1e-4, atol=1e-5)


@every_backbone
def test_multi_layer_features_are_the_pooled_stages(name: str) -> None:
    backbone = build_backbone(name, input_size=32).eval()
    features = backbone.multi_layer(images())
    assert features.shape == (2, sum(backbone.stage_dims[1:]))
    second = backbone.stages(images())[1]
    torch.testing.assert_close(features[:, : backbone.stage_dims[1]], second.mean((2, 3)))
    assert backbone.multi_layer(images(), stages=[1]).shape == (2, backbone.stage_dims[0])
    with pytest.raises(InputError, match=f"{name} has stages 1 to 4, not 5"):
        backbone.multi_layer(images(), stages=[5])


@every_backbone
def test_batch_norms_folded_into_convolutions_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, input_size=32)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                assert values is not None
                nn.init.uniform_(values, 0.5, 1.5)
    with torch.inference_mode():
        expected = backbone.eval()(images())
        folded = fold_batch_norms(backbone)
        atol = 1e-3 * float(expected.abs().max())
        torch.testing.assert_close(folded(images()), expected, rtol=1e-3, atol=atol)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())


@every_backbone
def test_every_parameter_gets_a_gradient(name: str) -> None:
    backbone = build_backbone(name, input_size=32)
    backbone(images(4)).square().sum().backward()
    for name, parameter in backbone.named_parameters():
        # A convolution's bias before batch norm has no effect, and a gradient of rounding errors.
        if not name.endswith(".bias"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_the_networks_are_the_published_ones() -> None:
    torch.manual_seed(0)
    resnet12 = build_backbone("resnet12").eval()
    assert n_parameters(resnet12) == 9_427_840
    assert n_parameters(build_backbone("resnet12-metaopt")) == 12_424_320
    assert n_parameters(build_backbone("conv4")) == 113_088
    assert resnet12.multi_layer(images()).shape == (2, 1120)
    assert [stage.shape[-1] for stage in resnet12.stages(images(side=84))] == [84, 42, 21, 11]
    for module in resnet12.modules():  # Kaiming-normal by fan-out
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)


def test_images_of_another_size_and_unknown_names_are_errors() -> None:
    with pytest.raises(InputError, match="input_size must be 28.*32"):
        build_backbone("conv4", input_size=28)(images(side=32))
    with pytest.raises(InputError, match="input_size must be 32"):
        build_backbone("conv4", input_size=32).set_input_size(48)
    with pytest.raises(InputError, match="at least 16×16, not 8"):
        build_backbone("conv4", input_size=8)
    with pytest.raises(InputError, match="'vgg'.*'conv4'.*'timm:<name>'"):
        build_backbone("vgg")


def test_dropblock_drops_squares_at_its_rate_and_keeps_the_scale() -> None:
    torch.manual_seed(0)
    dropped = DropBlock(0.1, block_size=3)(torch.ones(64, 32, 12, 12))
    share = (dropped == 0).float().mean().item()
    assert 0.08 < share < 0.1  # overlapping squares drop a little less than the rate
    assert dropped.mean().item() == pytest.approx(1, abs=1e-4)
    # Each dropped place lies in a 3 × 3 square of dropped places.
    zeros = (dropped == 0).float()
    squares = (F.avg_pool2d(zeros, 3, stride=1) > 0.99).float()
    covered = F.max_pool2d(F.pad(squares, (2, 2, 2, 2)), 3, stride=1)
    assert torch.equal(covered, zeros)
    smaller_than_a_square = DropBlock(0.5, block_size=5)(torch.ones(8, 64, 2, 2))
    assert set((smaller_than_a_square == 0).flatten(2).sum(2).flatten().tolist()) == {0, 4}


@pytest.mark.parametrize(
    ("name", "side"),
    [("resnet12-metaopt", 48), ("resnet12-dropblock", 32), ("conv4-32-dropblock", 28)],
)
def test_dropblock_is_active_in_the_network_from_the_first_step_and_only_in_training(
    name: str, side: int
) -> None:
    """Nothing else differs: in evaluation, the same weights without it give the same embeddings."""
    torch.manual_seed(0)
    backbone = build_backbone(name, input_size=side)
    batch = images(4, side)
    without = build_backbone(name.removesuffix("-dropblock"), input_size=side)
    without.load_state_dict(backbone.state_dict(), strict=False)
    assert torch.equal(without.eval()(batch), backbone.eval()(batch))
    backbone.train()
    assert not torch.equal(backbone(batch), backbone(batch))
    for module in without.train().modules():
        if isinstance(module, DropBlock):
            module.eval()
    with_it = backbone.stages(batch)
    without_it = without.stages(batch)
    # The first two stages have none; those of resnet12-metaopt have dropout.
    if name.endswith("-dropblock"):
        assert torch.equal(with_it[1], without_it[1])
    for maps, alone in zip(with_it[2:], without_it[2:], strict=True):
        assert (maps == 0).float().mean() > (alone == 0).float().mean() + 0.02


@pytest.mark.skipif(HAS_TIMM, reason="needs an environment without timm")
def test_timm_names_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[timm\]'"):
        build_backbone("timm:resnet18")


@needs_timm
@pytest.mark.parametrize(
    "model", ["resnet10t", "convnext_atto", "vit_tiny_patch16_224", "mobilenetv3_small_050"]
)
def test_timm_models_are_backbones(model: str) -> None:
    backbone: Backbone = build_backbone(f"timm:{model}").eval()
    side = backbone.spec.input_size
    with torch.no_grad():
        assert backbone(images(side=side)).shape == (2, backbone.embedding_dim)
        maps = backbone.stages(images(side=side))
    assert tuple(stage.shape[1] for stage in maps) == backbone.stage_dims
    assert len(backbone.spec.normalisation.mean) == 3
    with pytest.raises(InputError, match="resnet19"):
        build_backbone("timm:resnet19")


@pytest.mark.parametrize("name", ["conv4-32", "conv4-32-dropblock", "resnet12", "resnet12-metaopt"])
def test_every_module_is_called(name: str) -> None:
    """So that hooks, and modules that somebody puts in another's place, work."""
    backbone = build_backbone(name, input_size=16)
    called: set[str] = set()
    expected: set[str] = set()
    for path, module in backbone.named_modules():
        module.register_forward_hook(lambda *_, path=path: called.add(path))
        if not isinstance(module, nn.ModuleList):
            expected.add(path)
    backbone(torch.zeros(2, 3, 16, 16))
    assert called == expected


@pytest.mark.parametrize("name", ["conv4-32", "conv4-32-dropblock", "resnet12", "resnet12-metaopt"])
def test_a_fused_backbone_has_the_same_state(name: str) -> None:
    backbone = build_backbone(name, input_size=16)
    state = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    parameters = list(backbone.parameters())
    types = {type(module) for module in backbone.modules()}
    backbone.blocks[0].eval()
    fused = fuse(backbone)
    assert fused is backbone
    assert {type(module) for module in fused.modules()} != types
    assert list(fused.state_dict()) == list(state)
    torch.testing.assert_close(dict(fused.state_dict()), state)
    for parameter, before in zip(fused.parameters(), parameters, strict=True):
        assert parameter is before
    assert not fused.blocks[0].training
    assert fused.blocks[1].training


def test_only_blocks_with_norms_of_their_own_can_be_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearshot.models.kernels.kernels_run", lambda device: True)
    gpu = torch.device("cuda")
    backbone = build_backbone("conv4-32", input_size=16)
    assert can_fuse(backbone, gpu)
    assert not can_fuse(backbone, torch.device("cpu"))
    assert not can_fuse(nn.BatchNorm2d(64), gpu)
    assert not can_fuse(nn.SyncBatchNorm.convert_sync_batchnorm(backbone), gpu)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_where_kernels_do_not_run_nothing_is_fused(caplog: pytest.LogCaptureFixture) -> None:
    """Whether Triton is installed or not."""
    kernels_run.cache_clear()  # it says why once
    assert not can_fuse(build_backbone("conv4-32", input_size=16), torch.device("cuda"))
    assert len(caplog.records) == (importlib.util.find_spec("triton") is not None)


@needs_timm
def test_timm_without_network_is_one_sentence_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr("socket.create_connection", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    start = time.perf_counter()
    with pytest.raises(InputError, match="timm:resnet10t"):
        load_backbone("timm:resnet10t")
    assert time.perf_counter() - start < 10


@needs_timm
def test_timm_models_take_a_weights_file_and_another_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = "timm:vit_tiny_patch16_224"
    file = tmp_path / "weights.pth"
    trained = build_backbone(name).eval()
    assert isinstance(trained, TimmBackbone)
    torch.save(trained.model.state_dict(), file)
    loaded = load_backbone(f"{name}@{file}")
    assert (loaded.spec.name, loaded.spec.input_size) == (name, 224)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images(side=224)), trained(images(side=224)))
        smaller = load_backbone(f"{name}@{file}", input_size=96)
        assert smaller(images(side=96)).shape == (2, loaded.embedding_dim)
    with pytest.raises(FileFormatError, match="weights.pth has no weights of timm:resnet10t"):
        load_backbone(f"timm:resnet10t@{file}")
    with pytest.raises(InputError, match="gone.pth"):
        load_backbone(f"{name}@{tmp_path / 'gone.pth'}")
