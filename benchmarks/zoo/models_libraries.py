"""Models of torchvision and timm, where these are installed."""

from __future__ import annotations

import functools
from typing import Any

import torch

from benchmarks.zoo.registry import Example, Size, classified, declare_ops, model

# name → edge of a small image; the smallest that the architecture takes
TORCHVISION = {
    "alexnet": 64,
    "densenet121": 32,
    "efficientnet_v2_s": 32,
    "googlenet": 64,
    "inception_v3": 75,
    "mnasnet0_5": 32,
    "mobilenet_v3_small": 32,
    "regnet_x_400mf": 32,
    "resnet34": 32,
    "shufflenet_v2_x1_0": 32,
    "squeezenet1_1": 32,
    "swin_v2_t": 64,
    "vgg11_bn": 32,
    "wide_resnet50_2": 32,
    "convnext_tiny": 32,
    "maxvit_t": 224,
    "fcn_resnet50": 32,
    "deeplabv3_mobilenet_v3_large": 32,
    "lraspp_mobilenet_v3_large": 32,
    "r2plus1d_18": 32,
    "mc3_18": 32,
}
TIMM = (
    "resnet18",
    "res2net50_14w_8s",
    "seresnet18",
    "skresnet18",
    "ecaresnet50t",
    "resnest14d",
    "hrnet_w18_small",
    "dla34",
    "dpn48b",
    "ese_vovnet19b_dw",
    "ghostnet_100",
    "mixnet_s",
    "tf_efficientnet_b0",
    "nfnet_l0",
    "regnety_002",
    "repvgg_a0",
    "rexnet_100",
    "selecsls42b",
    "xception41",
    "cspresnet50",
    "darknet53",
    "lcnet_050",
    "tinynet_e",
    "hardcorenas_a",
    "mobilevit_xxs",
    "mobileone_s0",
    "fastvit_t8",
    "efficientvit_b0",
    "convnextv2_atto",
    "convmixer_768_32",
    "edgenext_xx_small",
    "levit_128s",
    "poolformer_s12",
    "coat_tiny",
    "crossvit_tiny_240",
    "pit_ti_224",
    "twins_svt_small",
    "xcit_nano_12_p16_224",
    "volo_d1_224",
    "cait_xxs24_224",
    "beit_base_patch16_224",
    "deit3_small_patch16_224",
    "eva02_tiny_patch14_224",
    "gcvit_xxtiny",
    "maxvit_rmlp_pico_rw_256",
    "mvitv2_tiny",
    "nest_tiny",
    "pvt_v2_b0",
    "resmlp_12_224",
    "gmixer_24_224",
    "sequencer2d_s",
    "swinv2_cr_tiny_224",
    "tnt_s_patch16_224",
    "tiny_vit_5m_224",
    "visformer_tiny",
    "vit_tiny_patch16_224",
    "vit_relpos_small_patch16_224",
    "hiera_tiny_224",
    "focalnet_tiny_srf",
    "davit_tiny",
    "inception_next_tiny",
    "starnet_s1",
    "repvit_m0_9",
    "rdnet_tiny",
)


def _vision(name: str, edge: int, size: Size) -> Example:
    declare_ops()
    import torchvision

    more = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    segments = "fcn" in name or "deeplab" in name or "lraspp" in name
    if segments:
        more = {"weights_backbone": None}
    found = torchvision.models.get_model(name, weights=None, **more)
    edge = edge if size == "small" else max(edge, 224)
    if name in ("r2plus1d_18", "mc3_18"):
        return Example(found, (torch.randn(2, 3, 8, 32, 32) if size == "small" else torch.randn(1, 3, 8, 112, 112),))
    return Example(found, (torch.randn(2, 3, edge, edge),))


def _takes(module: Any, edge: int) -> bool:
    """Return True if a model runs on images of another size than that of its configuration."""
    try:
        with torch.no_grad():
            module.eval()(torch.randn(1, 3, edge, edge))
    except (AssertionError, RuntimeError, ValueError):  # sizes that are fixed, or that do not divide
        return False
    return True


def _timm(name: str, size: Size) -> Example:
    declare_ops()
    import timm

    found = timm.create_model(name, pretrained=False)
    edge = int(timm.data.resolve_model_data_config(found)["input_size"][-1])
    edge = 64 if size == "small" and _takes(found, 64) else edge
    return classified(found, torch.randn(2, 3, edge, edge), 1000)


for _name, _edge in TORCHVISION.items():
    model(f"torchvision.{_name}", "libraries", "torchvision")(functools.partial(_vision, _name, _edge))
for _name in TIMM:
    model(f"timm.{_name}", "libraries", "timm", "torchvision")(functools.partial(_timm, _name))
