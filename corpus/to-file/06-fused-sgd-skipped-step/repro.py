# SGD(momentum=0.9, fused=True) with a GradScaler whose first scale is too large, as its default
# mostly is in float16. After the step that the scaler skips, momentum is uninitialised memory.
import sys

import torch

# Fills what torch.empty returns with NaN, so that the reading of it always shows.
torch.use_deterministic_algorithms(True)


def train(fused):
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale((8 * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update(2.0)  # a scale that does not overflow
    return weight.detach()


expected, observed = train(fused=False), train(fused=True)
print("weight after three steps, the first one skipped, fused=False:", expected)
print("weight after three steps, the first one skipped, fused=True: ", observed)
sys.exit(not torch.allclose(observed, expected))
