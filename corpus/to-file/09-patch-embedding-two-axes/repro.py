# The first layer of a vision transformer, which cuts images into patches (kernel_size == stride),
# is a module of DTensors on a mesh of two axes. Its backward raises.
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_module


def shape_of_gradient(mesh_shape):
    mesh = init_device_mesh("cpu", mesh_shape)
    patches = distribute_module(nn.Conv2d(3, 8, kernel_size=2, stride=2), mesh)
    images = DTensor.from_local(torch.ones(1, 3, 4, 4), mesh)
    patches(images).to_local().sum().backward()
    return tuple(patches.weight.grad.shape)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
expected = shape_of_gradient((1,))
try:
    observed = shape_of_gradient((1, 1))
except Exception as error:
    observed = f"{type(error).__name__}: {error}"
dist.destroy_process_group()
print("gradient on a mesh of one axis: ", expected)
print("gradient on a mesh of two axes: ", observed)
sys.exit(observed != expected)
