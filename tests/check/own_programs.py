"""Programs as users have them, over the four models of ``programs``: right ones, and mistakes.

They were written before anybody looked at what a check says of them; what it has to say of a
mistake was put into its words afterwards. A mistake is a right program with one edit, so that both
read as a user's file does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from user_models import functions_of

from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject

PROGRAMS = Path(__file__).parent / "programs"


@dataclasses.dataclass(frozen=True)
class Program:
    """A model of a file, the functions that train it, and how it is checked."""

    file: str
    functions: dict[str, str]
    mesh: str = "dp_shard=2"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def subject(self, folder: Path = PROGRAMS) -> Subject:
        named = functions_of(PROGRAMS / "saved.py") | functions_of(folder / f"{self.file}.py")
        return Subject(**{field: named[name] for field, name in self.functions.items()})

    def but(
        self, mesh: str = "", options: dict[str, Any] | None = None, **functions: str
    ) -> Program:
        """The same with other functions; those named "" are left out."""
        named = {field: name for field, name in (self.functions | functions).items() if name}
        more = self.options | (options or {})
        return Program(self.file, named, mesh or self.mesh, more)


LM = Program(
    "lm",
    {
        **{"build": "build", "inputs": "batch", "loss": "loss", "parallelize": "apply_fsdp"},
        **{"train_step": "train_step", "optimizer": "optimizer"},
    },
)
PADDED = LM.but(inputs="batch_padded", loss="loss_padded", train_step="step_padded")
PIPELINE = LM.but("pp=2", {"microbatches": 1}, parallelize="apply_pp", train_step="step_pp")
CONV = Program(
    "convnet",
    {"build": "build", "inputs": "inputs_only", "parallelize": "apply_ddp"}
    | {"train_step": "train_step", "optimizer": "optimizer"},
)
MOE = Program(
    "moe",
    {"build": "build", "inputs": "batch", "loss": "loss", "parallelize": "apply_fsdp"}
    | {"train_step": "step_balanced"},
)
FEW = Program("moe", {"build": "build_few", "inputs": "rows", "parallelize": "apply_ddp_unused"})
LORA = Program(
    "adapters",
    {"build": "build", "inputs": "batch", "loss": "loss", "parallelize": "apply_fsdp"}
    | {"train_step": "train_step", "optimizer": "optimizer"},
)

RIGHT = {
    "layers and root, accumulation, clipping, schedule": LM,
    "a tie": LM.but(build="build_tied"),
    "what is needed last is a group": LM.but(parallelize="apply_grouped"),
    "prefetching, dropout": LM.but(build="build_dropout", parallelize="apply_prefetch"),
    "meta device, a tie": LM.but(build="build_meta", parallelize="apply_meta"),
    "checkpointed layers, dropout": LM.but(
        build="build_dropout", parallelize="apply_checkpointing"
    ),
    "compiled layers": LM.but(parallelize="apply_compile"),
    "mixed precision": LM.but(parallelize="apply_mixed_precision"),
    "DDP, no_sync": LM.but(parallelize="apply_ddp"),
    "replicas of shards": LM.but("dp_replicate=2,dp_shard=2"),
    "tensor parallel": LM.but("tp=2", parallelize="apply_tp"),
    "tensor parallel and sharded": LM.but("dp_shard=2,tp=2", parallelize="apply_tp"),
    "Megatron's f and g": LM.but(
        "tp=2", parallelize="apply_megatron", train_step="step_unclipped"
    ),
    "a pipeline": PIPELINE,
    "padding, weighted by tokens": PADDED.but(loss_weight="weight_padded"),
    "padding, one batch of all": PADDED.but(options={"global_batch": True}),
    "average of whole weights": LM.but(train_step="step_average"),
    "evaluation before training": LM.but(train_step="step_evaluated", build="build_dropout"),
    "resumed": LM.but(options={"resume": 1}),
    "a closure, cosine schedule": CONV,
    "batch norm, sharded": CONV.but(parallelize="apply_fsdp"),
    "static graph": CONV.but(parallelize="apply_ddp_static"),
    "frozen statistics": CONV.but(build="build_frozen", train_step="step_frozen"),
    "frozen statistics, sharded": CONV.but(
        build="build_frozen", train_step="step_frozen", parallelize="apply_fsdp"
    ),
    "averaged weights": CONV.but(train_step="step_averaged"),
    "autocast": CONV.but(train_step="step_autocast"),
    "losses are logged": CONV.but(train_step="step_logged"),
    "two heads": CONV.but(build="build_detector", train_step="step_detector"),
    "adversarial images": CONV.but(train_step="step_adversarial", parallelize="apply_fsdp"),
    "group norm, checkpointed": CONV.but(
        build="build_group_norm", parallelize="apply_checkpointing", train_step="step_plain"
    ),
    "experts, sharded as the rest": MOE,
    "experts, replicated": MOE.but(parallelize="apply_ddp", train_step="step_no_sync"),
    "experts on their ranks": MOE.but(parallelize="apply_ep"),
    "experts that are not chosen": FEW,
    "adapters": LORA,
    "adapters, DDP": LORA.but(parallelize="apply_ddp"),
    "adapters alone are sharded": LORA.but(parallelize="apply_trained"),
    "adapters, checkpointed": LORA.but(parallelize="apply_checkpointing"),
    "adapters, reentrant": LORA.but(parallelize="apply_reentrant"),
    "adapters of a half": LORA.but(parallelize="apply_half"),
    "a teacher": LORA.but(train_step="step_distilled", parallelize="apply_ddp"),
    "adapters, saved alone": LORA.but(save="save", load="load", options={"resume": 1}),
}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A right program, and the edit that makes it wrong.

    ``says`` is in a report that names the mistake, ``line`` in the line of the operator that it
    shall name; "none" if no operator computes anything wrong, "" if training does not come so far.
    ``seen`` is how it is seen today: "named", "found" without that, "said" to be unseen, "unseen".
    """

    program: Program
    old: str
    new: str
    says: str
    line: str = "none"
    seen: str = "named"

    def subject(self, folder: Path) -> Subject:
        """The subject, whose file is written to a folder."""
        name = f"{self.program.file}.py"
        text = (PROGRAMS / name).read_text()
        times = text.count(self.old) if self.old else 1
        assert times == 1, f"{times} times in {name}: {self.old}"
        (folder / name).write_text(text.replace(self.old, self.new) if self.old else text)
        return self.program.subject(folder)

    def judge(self, report: TrainingReport) -> tuple[str, str]:
        """How the mistake was seen, and whether its operator was "right", "wrong" or not due."""
        is_told = self.says in "\n".join(report.lines())
        words = ("named", "found") if report.is_finding else ("said", "unseen")
        seen = words[0] if is_told else words[1]
        found = report.operator
        if found is None or not self.line:
            return seen, ""
        right = found.how == "none" if self.line == "none" else self.line in found.line
        return seen, "right" if right else "wrong"


CLIPPED = "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    finish(optimizer)"
BY_SHARDS = """    shards = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters()]
    norm = torch.nn.utils.get_total_norm(shards)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm)
    finish(optimizer)"""
EVALUATES = """    with torch.no_grad():
        losses = torch.stack([loss(model(tokens), tokens) for tokens in batches]).mean()
    dist.all_reduce(losses)"""
ON_ONE_RANK = """    if dist.get_rank() == 0:
        with torch.no_grad():
            print(torch.stack([loss(model(tokens), tokens) for tokens in batches]).mean())"""
COUNTS = "    dist.all_reduce(count)\n    count /= dist.get_world_size()\n"
PLAIN_LOOP = """def step_plain(model, optimizer, batches):
    for images in batches:
        (objective(model, images) / len(batches)).backward()
"""
CLOSURE = """            total += loss.detach()
        return total

    optimizer.step(closure)
    optimizer.scheduler.step()"""
DDP_OF_LORA = "    return DistributedDataParallel(model, device_mesh=mesh)"
AFTER_DDP = """    model = DistributedDataParallel(model, device_mesh=mesh)
    {}
    return model"""

MISTAKES = {
    "rotations are lost by to_empty": Mistake(
        LM.but(build="build_meta", parallelize="apply_meta"),
        "            self.cos, self.sin = (t.to(self.cos.device) for t in rotations())",
        "            pass",
        "differs from itself: buffers cos",
        "",
        "said",
    ),
    "a tie is lost by to_empty": Mistake(
        LM.but(build="build_meta", parallelize="apply_meta"),
        "module.reset_parameters()\n        if self.tied:",
        "module.reset_parameters()\n        if False:",
        "tie",
        "",
    ),
    "clipped by the norm of shards": Mistake(LM, CLIPPED, BY_SHARDS, "clipped by another norm?"),
    "synchronisation stays off": Mistake(
        LM,
        "model.set_requires_gradient_sync(last)",
        "model.set_requires_gradient_sync(False)",
        "synchronisation is never turned on",
    ),
    "no_sync for the last microbatch, too": Mistake(
        LM.but(parallelize="apply_ddp"), "if ddp and not last", "if ddp", "never reduced"
    ),
    "each rank divides by its own tokens": Mistake(
        PADDED.but(loss_weight="weight_padded"), COUNTS, "", "a mean of the ranks' means"
    ),
    "the sum of tokens is not divided by ranks": Mistake(
        PADDED.but(options={"global_batch": True}),
        COUNTS,
        "    dist.all_reduce(count)\n",
        "0.50 times the expected",
    ),
    "the last norm is not in the plan": Mistake(
        LM.but("tp=2", parallelize="apply_tp", train_step="step_unclipped"),
        '        "norm": SequenceParallel(),\n        "output"',
        '        "output"',
        "not reduced over tp",
    ),
    "Megatron's f is forgotten": Mistake(
        LM.but("tp=2", parallelize="apply_megatron", train_step="step_unclipped"),
        "        x = ColumnThenRow.apply(x, group)\n",
        "",
        "along tp, which have equal data: is a sum missing?",
        "self.ffn_norm(x)",
    ),
    "Megatron's g sums nothing": Mistake(
        LM.but("tp=2", parallelize="apply_megatron", train_step="step_unclipped"),
        "        x = x.clone()\n        dist.all_reduce(x, group=group)\n        return x\n",
        "        return x.clone()\n",
        "along tp, which have equal data: is a sum missing?",
        "SumOfRanks.apply(F.linear(hidden, w2)",
    ),
    "dropout is drawn again when recomputed": Mistake(
        LM.but(build="build_dropout", parallelize="apply_checkpointing"),
        "preserve_rng_state=True",
        "preserve_rng_state=False",
        "recomputed in the backward",
        "F.dropout(mixed",
    ),
    "replicas are left out of the mesh": Mistake(
        LM.but("dp_replicate=2,dp_shard=2"),
        "def apply_fsdp(model, mesh):\n    wrap_layers(model, mesh)",
        'def apply_fsdp(model, mesh):\n    wrap_layers(model, mesh["dp_shard"])',
        "not reduced over dp_replicate",
    ),
    "microbatches of a pipeline add up": Mistake(
        PIPELINE,
        "n_microbatches=2, loss_fn=loss)",
        "n_microbatches=2, loss_fn=loss, scale_grads=False)",
        "2.00 times the expected",
    ),
    "a schedule divides what was divided": Mistake(
        PIPELINE.but(options={"microbatches": 2}),
        "it has one batch, of two microbatches.",
        "each batch but the last is divided once more.",
        "divide",
        seen="found",
    ),
    "an average of shards beside the model": Mistake(
        LM.but(train_step="step_average"),
        "parameter.full_tensor() if",
        "parameter.to_local() if",
        "average",
        "",
        "unseen",
    ),
    "one rank alone evaluates": Mistake(
        LM.but(train_step="step_evaluated"),
        EVALUATES,
        ON_ONE_RANK,
        "as many",
        "",
    ),
    "batch norm is checkpointed": Mistake(
        CONV.but(parallelize="apply_checkpointing", train_step="step_plain"),
        "    checkpointed = False",
        "    checkpointed = None",
        "buffers are not compared",
        "",
        "said",
    ),
    "frozen by names that DDP changes": Mistake(
        CONV.but(train_step="step_plain"),
        PLAIN_LOOP,
        PLAIN_LOOP.replace(
            "    for images",
            """    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(("stem", "layers")))
    for images""",
        ),
        "frozen in the plain model",
    ),
    "a schedule goes on with each microbatch": Mistake(
        CONV,
        CLOSURE,
        CLOSURE.replace(
            "detach()\n", "detach()\n            optimizer.scheduler.step()\n"
        ).replace(
            "    optimizer.step(closure)\n    optimizer.scheduler.step()",
            "    optimizer.step(closure)",
        ),
        "a change for each microbatch?",
    ),
    "an optimizer of before wrapping": Mistake(
        CONV.but(parallelize="apply_fsdp", train_step="step_plain"),
        PLAIN_LOOP,
        """_apply_fsdp = apply_fsdp


def apply_fsdp(model, mesh):
    model.own = torch.optim.SGD(model.parameters(), lr=0.1)
    _apply_fsdp(model, mesh)


"""
        + PLAIN_LOOP
        + "    optimizer = getattr(model, 'own', optimizer)\n",
        "the optimizer has none of the model's parameters",
    ),
    "gradients are reduced once more": Mistake(
        CONV.but(train_step="step_plain"),
        PLAIN_LOOP,
        PLAIN_LOOP
        + """    if isinstance(model, DistributedDataParallel):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
""",
        "perhaps a sum over 2 ranks",
        seen="found",
    ),
    "all ranks have the same images": Mistake(
        CONV,
        "manual_seed(step * dp_size + dp_rank)",
        "manual_seed(step)",
        "all ranks get equal batches",
        seen="said",
    ),
    "DDP is told of no unused head": Mistake(
        CONV,
        " + 0.0 * self.auxiliary(features)",
        "",
        "Expected to have finished reduction",
        "",
    ),
    "the loop calls the module within DDP": Mistake(
        CONV.but(train_step="step_plain"),
        PLAIN_LOOP,
        PLAIN_LOOP.replace("(model,", "(getattr(model, 'module', model),", 1)
        .replace("def step_plain(getattr(model, 'module', model),", "def step_plain(model,")
        .replace("objective(model,", "objective(getattr(model, 'module', model),"),
        "never reduced",
    ),
    "gradients of experts add up": Mistake(
        MOE.but(parallelize="apply_ep"),
        "        sharded.register_hook(lambda gradient: gradient / mesh.size())\n",
        "",
        "perhaps a sum over 2 ranks",
    ),
    "experts hear of their own rank's tokens alone": Mistake(
        MOE.but(parallelize="apply_ep"),
        "        dist.all_gather(parts, gradient.contiguous(), group=ctx.group)\n",
        """        parts = [torch.zeros_like(gradient) for _ in parts]
        parts[dist.get_rank(ctx.group)] = gradient
""",
        "torch.zeros_like(gradient)",
        "torch.zeros_like(gradient)",
    ),
    "experts are balanced by a rank's own tokens": Mistake(
        MOE,
        "        if parallel:\n            dist.all_reduce(counts)\n",
        "",
        "otherwise on each rank: not reduced?",
        "",
    ),
    "weights are of the experts of this rank": Mistake(
        MOE.but(parallelize="apply_ep"),
        "        mine = weights.chunk(self.mesh.size(), -1)[rank]\n",
        """        mine = weights.chunk(self.mesh.size(), -1)[rank]
        mine = mine / mine.sum(-1, keepdim=True).clamp(min=1e-6)
""",
        "first operator that differs",
        "mine",
    ),
    "the router is nobody's": Mistake(
        MOE.but(parallelize="apply_ep"),
        "experts |= set(layer.experts.parameters())",
        "experts |= {*layer.experts.parameters(), *layer.router.parameters()}",
        "never reduced",
    ),
    "DDP is told of no unused experts": Mistake(
        FEW,
        "find_unused_parameters=True",
        "find_unused_parameters=False",
        "Expected to have finished reduction",
        "",
    ),
    "adapters are drawn after DDP has made them alike": Mistake(
        LORA.but(parallelize="apply_ddp"),
        DDP_OF_LORA,
        AFTER_DDP.format(
            """torch.manual_seed(dist.get_rank())
    for name, parameter in model.named_parameters():
        if "lora_a" in name:
            nn.init.kaiming_uniform_(parameter)"""
        ),
        "differs between ranks",
        "",
    ),
    "a factor is made of a shard's rows": Mistake(
        LORA,
        "    fully_shard(model, mesh=mesh)\n\n\ndef apply_trained",
        """    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, Adapted):
            module.scale = ALPHA / len(module.lora_a.weight.to_local())


def apply_trained""",
        "self.scale * self.lora_b",
        "self.scale * self.lora_b",
    ),
    "reentrant checkpoints get no gradient": Mistake(
        LORA.but(parallelize="apply_reentrant"),
        "    model.patches.register_forward_hook(lambda *args: args[-1].requires_grad_())\n",
        "",
        "None of the inputs have requires_grad=True",
        "",
    ),
    "norms are thawed after DDP has looked": Mistake(
        LORA.but(parallelize="apply_ddp"),
        DDP_OF_LORA,
        AFTER_DDP.format(
            """for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.requires_grad_(True)"""
        ),
        "frozen in the plain model",
    ),
    "the first microbatch alone is reduced": Mistake(
        LORA.but(parallelize="apply_ddp"),
        "accumulate(model, i == len(batches) - 1)",
        "accumulate(model, i == 0)",
        "never reduced",
        seen="found",
    ),
    "the head is not saved": Mistake(
        LORA.but(save="save", load="load", options={"resume": 1}),
        'state_dict().items() if "lora" in n or "classifier" in n}',
        'state_dict().items() if "lora" in n}',
        "lost when resumed: parameter classifier.weight",
        "self.classifier(",
    ),
    "all ranks draw the same dropout": Mistake(
        LORA,
        "    model.train()\n    for i, inputs",
        "    torch.manual_seed(0)\n    model.train()\n    for i, inputs",
        "all ranks are seeded with 0",
        "",
        "said",
    ),
}

RESUMED = {
    "lm": (LM.but(build="build_dropout"), "LambdaLR", ("parameters", "state", "step", "lr")),
    "convnet": (CONV, "CosineAnnealingLR", ("parameters", "buffers", "state", "lr")),
    "moe": (MOE, "", ("parameters", "buffers", "state", "step", "lr")),
    "few": (FEW, "", ("parameters", "state", "step", "lr")),
    "adapters": (LORA, "SequentialLR", ("parameters", "state", "step", "lr")),
}
"""Models, their schedulers, and what a load may forget of them beside that and what they draw."""

LOST = {
    "parameters": "lost when resumed: parameter ",
    "buffers": "lost when resumed: buffer ",
    "state": "in the optimizer (of ",
    "step": "lost when resumed: step in the optimizer (of ",
    "lr": "lost when resumed: lr",
    "random": "lost when resumed: random state",
}
DRAW = ("lm", "adapters")

MISTAKES["experts without state are saved by DCP"] = Mistake(
    FEW.but(options={"resume": 1}),
    "",
    "",
    "Missing key in checkpoint state_dict: optimizer.state.experts",
    "",
)

for _model, (_program, _scheduler, _kinds) in RESUMED.items():
    _resumed = _program.but(options={"resume": 1, "steps": 3})
    if _model in ("lm", "moe"):  # DCP saves no scheduler, and one rank's statistics
        RIGHT[f"{_model}, resumed by DCP"] = _resumed.but(optimizer="")
    RIGHT[f"{_model}, resumed by hand"] = _resumed.but(save="save", load="load")
    _more = ["scheduler"] * bool(_scheduler) + ["random"] * (_model in DRAW)
    for _kind in (*_kinds, *_more):
        MISTAKES[f"{_model}, resumed without {_kind}"] = Mistake(
            _resumed.but(save="save", load=f"without_{_kind}"),
            "",
            "",
            LOST.get(_kind, f"state of the {_scheduler}"),
            "",
            "said" if _kind == "random" or _kind + _model == "buffersconvnet" else "named",
        )
