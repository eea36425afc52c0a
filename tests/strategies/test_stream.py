import hashlib
import os
import subprocess
import sys

from fuzzshard.case.codec import encode
from fuzzshard.strategies import draw_cases

DIGEST = """
import hashlib{extra}
from fuzzshard.case.codec import encode
from fuzzshard.strategies import draw_cases
print(hashlib.sha256(b"".join(encode(c) for c in draw_cases(7, 20, world_size=4))).hexdigest())
"""


def test_a_shorter_stream_is_a_prefix_of_a_longer_one():
    assert draw_cases(7, 30, world_size=4) == draw_cases(7, 60, world_size=4)[:30]


def test_other_seeds_give_other_cases():
    shared = set(draw_cases(0, 30, world_size=4)) & set(draw_cases(1, 30, world_size=4))
    assert len(shared) == 1, "the minimal case starts every stream"


def test_the_stream_depends_neither_on_the_process_nor_on_what_it_imported():
    here = hashlib.sha256(b"".join(encode(c) for c in draw_cases(7, 20, world_size=4))).hexdigest()
    for hash_seed, extra in (
        ("1", ""),
        ("2", ", fuzzshard.analysis.features, fuzzshard.corpus.store"),
    ):
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        code = DIGEST.format(extra=extra)
        out = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == here


def test_drawing_imports_no_torch():
    drawing = (
        "import sys; from fuzzshard.strategies import draw_cases; draw_cases(0, 5, world_size=2)"
    )
    code = f"{drawing}; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
