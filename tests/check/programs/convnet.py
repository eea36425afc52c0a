"""An image classifier with batch norm, trained by loops as Lightning's and timm's users have."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    checkpointed = False

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def compute(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))

    def forward(self, x):
        if self.checkpointed:
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)


class ResNet(nn.Module):
    """With an auxiliary head, as Inception has."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.layers = nn.ModuleList(Residual(8) for _ in range(2))
        self.fc = nn.Linear(8, 10)
        self.auxiliary = nn.Linear(8, 10)

    def features(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x.mean((2, 3))

    def forward(self, images):
        features = self.features(images)
        return self.fc(features) + 0.0 * self.auxiliary(features)


class Detector(ResNet):
    """Returns both heads."""

    def forward(self, images):
        features = self.features(images)
        return self.fc(features), self.auxiliary(features)


class Norms(ResNet):
    """With group norm in place of batch norm."""

    def __init__(self):
        super().__init__()
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, nn.GroupNorm(4, child.num_features))


def build():
    return ResNet()


def build_detector():
    return Detector()


def build_group_norm():
    return Norms()


def build_frozen():
    """A backbone that is frozen with its statistics, whatever mode the model is in."""
    model = ResNet()
    for module in (model.stem, *model.layers):
        module.requires_grad_(False)
    freeze_statistics(model)
    return model


def freeze_statistics(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    images = torch.randn(4, 3, 8, 8, generator=generator)
    return images, torch.randint(10, (4,), generator=generator)


def inputs_only(step, dp_rank, dp_size):
    return batch(step, dp_rank, dp_size)[0]


def apply_ddp(model, mesh):
    return DistributedDataParallel(model, device_mesh=mesh)


def apply_ddp_static(model, mesh):
    return DistributedDataParallel(model, device_mesh=mesh, static_graph=True)


def apply_fsdp(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def apply_checkpointing(model, mesh):
    for layer in model.layers:
        layer.checkpointed = True
    apply_fsdp(model, mesh)


def optimizer(parameters):
    made = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    made.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=10)
    return made


def target_of(images):
    """Classes that the images say themselves."""
    return (images.mean((1, 2, 3)) * 100).long().remainder(10)


def objective(model, images):
    return F.cross_entropy(model(images), target_of(images), label_smoothing=0.1)


def train_step(model, optimizer, batches):
    """Lightning's way: the optimizer calls a closure."""

    def closure():
        optimizer.zero_grad()
        total = 0.0
        for images in batches:
            loss = objective(model, images) / len(batches)
            loss.backward()
            total += loss.detach()
        return total

    optimizer.step(closure)
    optimizer.scheduler.step()


def step_plain(model, optimizer, batches):
    for images in batches:
        (objective(model, images) / len(batches)).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()


def step_detector(model, optimizer, batches):
    for images in batches:
        main, auxiliary = model(images)
        target = target_of(images)
        loss = F.cross_entropy(main, target) + 0.4 * F.cross_entropy(auxiliary, target)
        (loss / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_averaged(model, optimizer, batches):
    """timm's way: an exponential average of the weights that is evaluated."""
    if not hasattr(optimizer, "averaged"):
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        optimizer.averaged = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    step_plain(model, optimizer, batches)
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer.averaged.update_parameters(plain)


def step_autocast(model, optimizer, batches):
    for images in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(images)
        loss = F.cross_entropy(outputs.float(), target_of(images))
        (loss / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_logged(model, optimizer, batches):
    """All ranks log the mean of their losses."""
    total = torch.zeros(())
    for images in batches:
        loss = objective(model, images) / len(batches)
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    optimizer.step()
    optimizer.zero_grad()


def step_frozen(model, optimizer, batches):
    """A loop that turns everything to training mode, and the statistics back."""
    model.train()
    freeze_statistics(model)
    step_plain(model, optimizer, batches)


def step_adversarial(model, optimizer, batches):
    """Trains on images that are moved along their gradient (FGSM)."""
    for images in batches:
        images = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(model, images), images)
        moved = (images + 0.1 * gradient.sign()).detach()
        loss = F.cross_entropy(model(moved), target_of(images))
        (loss / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
