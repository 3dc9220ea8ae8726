"""Reference networks: their sizes and names; losses and scores of each row, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from boxes import grid_loss, to_grid

from coterie.errors import CoterieError
from coterie.objectives.deep.losses import dice, dice_and_cross_entropy
from coterie.objectives.deep.nets import cnn, mlp, nodule_detector, unet


def size(net):
    return sum(p.numel() for p in net.parameters())


def names(net):
    return list(dict(net.named_parameters()))


def test_a_perceptron():
    net = mlp((64, 32, 10))
    assert size(net) == 64 * 32 + 32 + 32 * 10 + 10
    assert names(net) == ["dense1.weight", "dense1.bias", "head.weight", "head.bias"]
    assert net(torch.zeros(3, 8, 8)).shape == (3, 10)
    assert names(mlp((5, 2))) == ["head.weight", "head.bias"]


def test_the_usual_cnn():
    net = cnn()
    assert size(net) == 32 * 25 + 32 + 64 * 32 * 25 + 64 + 1024 * 512 + 512 + 512 * 10 + 10 == 582_026
    assert [name.split(".")[0] for name in names(net)[::2]] == ["conv1", "conv2", "dense", "head"]
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("norm", [None, "group", "batch"])
@pytest.mark.parametrize("make", [unet, nodule_detector])
def test_parts_have_names_and_norms(make, norm):
    net = make(norm=norm)
    assert {name.split(".")[0] for name in names(net)} == (
        {"encoder", "decoder", "head"} if make is unet else {"body", "head"}
    )
    assert any(".norm." in name for name in names(net)) == (norm is not None)
    assert bool(list(net.buffers())) == (norm == "batch")
    out = net(torch.zeros(2, 1, 16, 24 if make is unet else 16))
    assert out.shape == ((2, 1, 16, 24) if make is unet else (2, 5, 4, 4))


def test_a_detector_starts_with_few_nodules():
    net = nodule_detector()
    assert net.head.bias[0] == -3.0
    net.head.reset_parameters()  # as objectives do, to start from a seed
    assert net.head.bias[0] == -3.0 and (net.head.bias[1:] != -3.0).all()


def test_a_mask_s_loss_and_dice_by_hand():
    truth = torch.tensor([[[[1, 1], [0, 0]]], [[[0, 0], [0, 0]]]], dtype=torch.uint8)
    logits = torch.tensor([[[[2.0, -1.0], [-3.0, 0.5]]], [[[-9.0, -9.0], [-9.0, -9.0]]]])
    p = 1 / (1 + np.exp(-logits.numpy().reshape(2, 4).astype(float)))
    y = truth.numpy().reshape(2, 4).astype(float)
    entropy = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(axis=1)
    soft = (2 * (p * y).sum(axis=1) + 1) / (p.sum(axis=1) + y.sum(axis=1) + 1)
    np.testing.assert_allclose(dice_and_cross_entropy(logits, truth), entropy + 1 - soft, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dice(logits, truth), [2 * 1 / (2 + 2), 1.0])


def test_a_grid_s_loss_by_hand():
    target = torch.from_numpy(to_grid([[[1, 5.0, 3.0, 4.0, 4.0]], [[0, 0, 0, 0, 0]]], 8, 2))
    outputs = torch.zeros(2, 5, 2, 2)
    outputs[:, 0] = -1.0
    outputs[0, 1:, 0, 1] = torch.tensor([0.5, 0.25, 2.0, 0.0])
    p = 1 / (1 + np.exp(1.0))
    empty = -(p**2) * np.log(1 - p)
    full = -((1 - p) ** 2) * np.log(p)
    # the box's code is (-0.25, 0.25, 0, 0): smooth L1 of 0.75, 0, 2, 0
    box = 0.5 * 0.75**2 + (2 - 0.5)
    np.testing.assert_allclose(grid_loss(outputs, target), [3 * empty + full + box, 4 * empty], rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mlp((64,)), "sizes must be the numbers of inputs and outputs"),
        (lambda: mlp((64, 0, 10)), "above 0"),
        (lambda: unet(channels=()), "channels must be one number above 0 for each level"),
        (lambda: nodule_detector(channels=(8, 0)), "channels must be one number above 0 for each level"),
        (lambda: unet(norm="layer"), "norm must be group or batch, not 'layer'"),
        (lambda: unet()(torch.zeros(1, 1, 30, 32)), r"sides divide by 4, unlike \(30, 32\)"),
    ],
)
def test_what_cannot_be_made_is_said(call, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call()
