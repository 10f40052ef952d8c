"""Residual networks for images of 32 pixels."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.tasks.kernels import add_relu
from atoll.tasks.models.shapes import Shape, image

Norm = Callable[[int], nn.Module]
Block = Callable[[int, int, int, Norm], "Residual"]


def resnet18(
    inputs: Shape, outputs: int, norm: Literal["batch", "group"] = "batch", groups: Annotated[int, Field(ge=1)] = 32
) -> "ResNet":
    """ResNet-18 for small images: 3x3 stem without pooling, batch or group normalisation.

    He et al., CVPR 2016. 11,173,962 parameters on (3, 32, 32) with 10 classes, whichever the normalisation.
    """
    return ResNet("resnet18", inputs, outputs, basic, [2, 2, 2, 2], 1, _norm(norm, groups))


def resnet50(
    inputs: Shape, outputs: int, norm: Literal["batch", "group"] = "batch", groups: Annotated[int, Field(ge=1)] = 32
) -> "ResNet":
    """ResNet-50 for small images: 3x3 stem without pooling, batch or group normalisation.

    He et al., CVPR 2016, with the stride on the 3x3 convolution. 23,520,842 parameters on (3, 32, 32) with 10 classes.
    """
    return ResNet("resnet50", inputs, outputs, bottleneck, [3, 4, 6, 3], 4, _norm(norm, groups))


class ResNet(nn.Module):
    """Stem, four stages that halve the image and double the channels, mean over pixels, linear head."""

    def __init__(
        self, name: str, inputs: Shape, outputs: int, block: Block, depths: list[int], expansion: int, norm: Norm
    ) -> None:
        super().__init__()
        channels, _, _ = image(name, inputs)
        self.stem = nn.Sequential(_conv(channels, 64, 3, 1), norm(64), nn.ReLU())
        before = 64
        stages: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            for i in range(depth):
                stages.append(block(before, width, 2 if stage and i == 0 else 1, norm))
                before = width * expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                # He et al. (ICCV 2015), as torchvision and NIID-Bench start theirs.
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return out


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)), where the shortcut is the identity unless the body changes the shape."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return add_relu(self.body(x), self.shortcut(x))


def basic(before: int, width: int, stride: int, norm: Norm) -> Residual:
    """Two 3x3 convolutions: the block of ResNet-18."""
    body = nn.Sequential(
        _conv(before, width, 3, stride), norm(width), nn.ReLU(),
        _conv(width, width, 3, 1), norm(width),
    )  # fmt: skip
    return Residual(body, _shortcut(before, width, stride, norm))


def bottleneck(before: int, width: int, stride: int, norm: Norm) -> Residual:
    """1x1, 3x3 and 1x1 convolutions, four times as wide at the end: the block of ResNet-50."""
    body = nn.Sequential(
        _conv(before, width, 1, 1), norm(width), nn.ReLU(),
        _conv(width, width, 3, stride), norm(width), nn.ReLU(),
        _conv(width, 4 * width, 1, 1), norm(4 * width),
    )  # fmt: skip
    return Residual(body, _shortcut(before, 4 * width, stride, norm))


def _shortcut(before: int, after: int, stride: int, norm: Norm) -> nn.Module:
    if stride == 1 and before == after:
        return nn.Identity()
    return nn.Sequential(_conv(before, after, 1, stride), norm(after))


def _conv(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


def _norm(name: Literal["batch", "group"], groups: int) -> Norm:
    if name == "batch":
        return nn.BatchNorm2d
    if 64 % groups:  # 64 is the narrowest layer, and every other width is a multiple of it
        raise ConfigError(f"task.model.groups: must divide 64 channels (got {groups}). Use 1, 2, 4, 8, 16, 32 or 64.")
    return partial(nn.GroupNorm, groups)
