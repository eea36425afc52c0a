"""A fused step of DTensors on CUDA takes no learning rate in a float64 tensor on the CPU.

Fused kernels read such a rate as a number (``lr.item<double>()`` where ``lr.is_cpu()``, in
aten/src/ATen/native/cuda/FusedAdamKernel.cu and its like), and expect float32 of one on the device.
To learn what layouts come out, DTensor runs the operator once on tensors of the mesh's device
(``ShardingPropagator._propagate_tensor_meta``), the rate among them: "expected scalar type Float
but found Double". Where it is a number, nothing has to be propagated.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fused optimizers: a float64 rate in a CPU tensor raises for DTensors on CUDA"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise("lr (float, Tensor, optional): learning rate", "torch.optim.SGD")
SETUP = (
    "A model under fully_shard on CUDA, an optimizer with fused=True, and its rate in a float64 "
    "tensor, as schedules that run without synchronisation want it."
)
WORKAROUND = "Make the tensor of the rate in float32, or give a number."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="Sharding propagation failed aten._fused_adamw_.tensor_lr expected scalar type Float "
        "but found Double DTensor fused optimizer lr tensor",
        date="2026-11-29",
    ),
)
_RATE = """
    if isinstance(lr, Tensor) and lr.is_cpu:
        lr = lr.item()
    lr_dict: DeviceDict | None = (
"""
EDITS = (
    Edit(
        "torch.optim.sgd:_fused_sgd",
        "lr=lr,",
        "lr=lr.item() if isinstance(lr, Tensor) and lr.is_cpu else lr,",
    ),
    *(
        Edit(f"torch.optim.{name}:_fused_{name}", "    lr_dict: DeviceDict | None = (", _RATE)
        for name in ("adam", "adagrad")
    ),
)
