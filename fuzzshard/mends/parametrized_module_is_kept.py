"""A parametrized module that ``fully_shard`` was called for is never freed.

``register_parametrization`` gives the module a class of its own, with a property for each
parametrized tensor; one function of the property has the module in its closure
(``get_cached_parametrization`` in torch/nn/utils/parametrize.py). So the class refers to the
module, a cycle that the garbage collector finds. ``fully_shard`` makes a subclass of every class
that it meets, and keeps both in a dictionary for ever (``cls_to_fsdp_cls`` in
torch/distributed/fsdp/_fully_shard/_fully_shard.py); with the class it keeps the module and its
parameters. The name of the cached tensor does not need the module.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: a module with weight_norm or another parametrization is never freed"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If you assign a Tensor or Variable to a local, Python will not deallocate until the local "
    "goes out of scope. You can free this reference by using ``del x``. Similarly, if you assign "
    "a Tensor or Variable to a member variable of an object, it will not deallocate until the "
    "object goes out of scope.",
    "https://docs.pytorch.org/docs/stable/notes/faq.html",
)
SETUP = (
    "A speech or vocoder model has ``nn.utils.parametrizations.weight_norm`` (or "
    "``spectral_norm``, or ``orthogonal``) on layers that ``fully_shard`` is called for. A "
    "process that builds several such models, one after another, keeps the parameters of all of "
    "them: a sweep of hyperparameters, reinforcement learning that swaps models, a test suite."
)
WORKAROUND = "Call ``fully_shard`` for a module around the parametrized one, and not for that."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/134135",
        "near: where the dictionary came from; nobody mentions what it keeps",
        "fully_shard parametrized module memory leak cls_to_fsdp_cls class cache keeps module "
        "alive",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.nn.utils.parametrize:_inject_property",
        """
        key = (id(module), tensor_name)
        """,
        """
        key = (id(parametrization), tensor_name)
        """,
    ),
)
