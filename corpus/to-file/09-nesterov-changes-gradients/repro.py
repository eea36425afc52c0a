# SGD(nesterov=True, foreach=True), which is the default on CUDA, changes param.grad: a step adds
# the momentum to it.
import sys

import torch


def gradient_after_step(**implementation):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, nesterov=True, **implementation)
    weight.sum().backward()
    optimizer.step()
    return weight.grad


expected = gradient_after_step(foreach=False)
observed = gradient_after_step(foreach=True)
print("weight.grad after the step, foreach=False:", expected)
print("weight.grad after the step, fused=True:   ", gradient_after_step(fused=True))
print("weight.grad after the step, foreach=True: ", observed)
sys.exit(not torch.equal(observed, expected))
