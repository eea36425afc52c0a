"""By what ranks say when they lose their peers they are told from ranks that fail by
themselves.
"""

from __future__ import annotations

import pytest

from fuzzshard.world.rank import lost_peers


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[127.0.0.1]:1234",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
        "shutdown or crash?",
        "Broken pipe",
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3",
        "NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error",
        "NCCL error: internal error, NCCL version 2.14.3\nncclInternalError: Internal check "
        "failed.",
        "NCCL communicator was aborted on rank 0.",
    ],
)
def test_a_collective_and_the_store_say_that_they_lost_their_peers(text: str) -> None:
    assert lost_peers(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "The size of tensor a (2) must match the size of tensor b (3)",
        "NCCL error in: NCCLUtils.cpp:93, invalid usage\nncclInvalidUsage: Duplicate GPU detected",
        "NCCL communicator has not been initialized before mem pool creation. You can pass "
        "`device_id` to init_process_group",
    ],
)
def test_an_error_of_an_engine_is_its_own(text: str) -> None:
    assert not lost_peers(RuntimeError(text))
