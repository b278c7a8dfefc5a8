"""The kernels compile for a GPU of compute capability 9.0, here, where there need not be one.

Run as a script, this writes the PTX of each kernel as JSON: with `TRITON_INTERPRET`, as in tests,
nothing is compiled.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# The arguments that are float32 for any type of the images.
FLOATS = {
    *("mean", "scale", "weight", "bias"),
    *("past_mean", "past_scale", "past_weight", "past_bias"),
    *("sums", "totals", "squares", "products"),
}
COUNTS = {"n_rows", "width", "n_places", "height", "n_channels", "n_programs"}


@pytest.mark.slow
def test_the_kernels_compile_and_do_not_count_in_16_bits(tmp_path: Path) -> None:
    """Integers of 16 bits, two in a register, came out wrong on an H200, though the PTX was right.

    A product of two that is 32 bits wide, as Triton 3.6 makes for addresses, came out right.
    """
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    result = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    compiled = json.loads(result.stdout)
    assert len(compiled) == 10
    in_16_bits = re.compile(r"\b(?:add|sub|mul|mad|div|rem)(?!\.wide)[.\w]*\.[su]16(?:x2)?\b")
    for name, text in compiled.items():
        assert "ld.global" in text
        assert not in_16_bits.findall(text), name


def ptx(kernel: Any, dtype: str, num_warps: int, constants: dict[str, Any]) -> str:
    """Pointers are to `dtype`, but for what is always float32."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile  # noqa: A004

    signature = {}
    values = {}
    alignment = {}
    for number, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            values[(number,)] = constants[name]
        elif name in COUNTS:
            signature[name] = "i32"
        else:
            signature[name] = "*fp32" if name in FLOATS else f"*{dtype}"
            alignment[(number,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=alignment)
    target = GPUTarget("cuda", 90, 32)
    text: str = compile(source, target=target, options={"num_warps": num_warps}).asm["ptx"]
    return text


def main() -> None:
    from nearshot.models.kernels import triton_norm, triton_stem

    compiled = {}
    for dtype in ("bf16", "fp32"):
        for name, rows, extra in (
            ("_summarise_convolution", triton_stem.SUMMING.rows, {}),
            ("_normalise_convolution", triton_stem.NORMALISING_ROWS, {}),
            ("_add_up_products", triton_stem.BACKWARD.rows, {"twofold": True}),
        ):
            kernel = getattr(triton_stem, name)
            constants = {"rows": rows, "channels": 64, **extra}
            compiled[f"{name} {dtype}"] = ptx(kernel, dtype, 4, constants)
    block = {"rows": 64, "channels": 64, "has_past": True}
    every = {"slope": 0.0, "has_shortcut": True}
    norms: list[tuple[str, int, dict[str, Any]]] = [
        ("_summarise", triton_norm.SUMMING.num_warps, {"rows": 64, "channels": 64}),
        ("_normalise", 4, block | every),
        (
            "_add_up_gradients",
            triton_norm.SUMMING_MORE.num_warps,
            block | every | {"twofold": True, "keep": True},
        ),
        ("_spread_gradients", 4, block | {"slope": 1.0}),
    ]
    for name, num_warps, constants in norms:
        compiled[f"{name} bf16"] = ptx(getattr(triton_norm, name), "bf16", num_warps, constants)
    json.dump(compiled, sys.stdout)


if __name__ == "__main__":
    main()
