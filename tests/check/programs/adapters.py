"""A frozen encoder with low-rank adapters and a head, trained as with PEFT and Accelerate."""

import contextlib
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, RANK, ALPHA = 8, 2, 4.0


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, base.out_features, bias=False)
        self.dropout = nn.Dropout(0.1)
        self.scale = ALPHA / RANK

    def forward(self, x):
        return self.base(x) + self.scale * self.lora_b(self.lora_a(self.dropout(x)))


class Layer(nn.Module):
    use_reentrant = None

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))

    def compute(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

    def forward(self, x):
        if self.use_reentrant is None:
            return self.compute(x)
        return checkpoint(self.compute, x, use_reentrant=self.use_reentrant)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(6, WIDTH)
        self.position = nn.Parameter(torch.zeros(5, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.classifier = nn.Linear(WIDTH, 4)

    def forward(self, patches, labels=None):
        x = self.patches(patches) + self.position
        for layer in self.layers:
            x = layer(x)
        logits = self.classifier(self.norm(x).mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def add_adapters(model):
    for layer in model.layers:
        layer.qkv, layer.proj = Adapted(layer.qkv), Adapted(layer.proj)


def freeze_base(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora" in name or "classifier" in name


def build():
    model = Encoder()
    add_adapters(model)
    freeze_base(model)
    return model


def build_whole():
    return Encoder()


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    patches = torch.randn(3, 5, 6, generator=generator)
    return {"patches": patches, "labels": torch.randint(4, (3,), generator=generator)}


def loss(outputs, batch):
    return outputs["loss"]


def apply_fsdp(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def apply_trained(model, mesh):
    """Wraps what is trained, and leaves what is frozen whole."""
    frozen = {p for p in model.parameters() if not p.requires_grad}
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=frozen)
    fully_shard(model, mesh=mesh, ignored_params=frozen)


def apply_ddp(model, mesh):
    return DistributedDataParallel(model, device_mesh=mesh)


def apply_half(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def apply_checkpointing(model, mesh):
    for layer in model.layers:
        layer.use_reentrant = False
    apply_fsdp(model, mesh)


def apply_reentrant(model, mesh):
    """Inputs of the layers require gradients, as ``enable_input_require_grads`` does."""
    for layer in model.layers:
        layer.use_reentrant = True
    model.patches.register_forward_hook(lambda *args: args[-1].requires_grad_())
    apply_fsdp(model, mesh)


def optimizer(parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    made = torch.optim.AdamW(trained, lr=5e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(made, 0.1, total_iters=2)
    decay = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
    made.scheduler = torch.optim.lr_scheduler.SequentialLR(made, [warmup, decay], [2])
    return made


@contextlib.contextmanager
def accumulate(model, last):
    """Accelerate's way: gradients of the last microbatch alone are reduced."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield


def train_step(model, optimizer, batches):
    model.train()
    for i, inputs in enumerate(batches):
        with accumulate(model, i == len(batches) - 1):
            (model(**inputs)["loss"] / len(batches)).backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.scheduler.step()
    optimizer.zero_grad()


def step_distilled(model, optimizer, batches):
    """A frozen copy of before teaches."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    if "teacher" not in vars(inner):
        vars(inner)["teacher"] = copy.deepcopy(inner).eval().requires_grad_(False)
    for inputs in batches:
        with torch.no_grad():
            due = inner.teacher(**inputs)["logits"]
        outputs = model(**inputs)
        distance = F.kl_div(
            outputs["logits"].log_softmax(-1), due.softmax(-1), reduction="batchmean"
        )
        ((outputs["loss"] + 0.5 * distance) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def save(model, optimizer, folder):
    """What is trained, of each rank."""
    trained = {n: p for n, p in model.state_dict().items() if "lora" in n or "classifier" in n}
    states = {"model": trained, "optimizer": optimizer.state_dict()}
    states["scheduler"] = optimizer.scheduler.state_dict()
    states["random"] = torch.get_rng_state()
    torch.save(states, os.path.join(folder, f"{dist.get_rank()}.pt"))


def load(model, optimizer, folder):
    states = torch.load(os.path.join(folder, f"{dist.get_rank()}.pt"), weights_only=False)
    model.load_state_dict(states["model"], strict=False)
    optimizer.load_state_dict(states["optimizer"])
    optimizer.scheduler.load_state_dict(states["scheduler"])
    torch.set_rng_state(states["random"])
