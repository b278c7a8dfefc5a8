"""Compile the kernels for a GPU of compute capability 9.0, which need not be there; write each one's PTX as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile  # noqa: A004

from nearshot.models.kernels import triton_norm, triton_stem

FLOATS = {"mean", "scale", "weight", "bias", "sums", "totals", "squares", "products"} | {
    f"past_{name}" for name in ("mean", "scale", "weight", "bias")
}
COUNTS = {"n_rows", "width", "n_places", "height", "n_channels", "n_programs"}


def ptx(kernel: Any, dtype: str, num_warps: int, constants: dict[str, Any]) -> str:
    """Pointers are to `dtype`, but for what is always float32."""
    signature, values, alignment = {}, {}, {}
    for number, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(number,)] = "constexpr", constants[name]
        elif name in COUNTS:
            signature[name] = "i32"
        else:
            signature[name] = "*fp32" if name in FLOATS else f"*{dtype}"
            alignment[(number,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=alignment)
    text: str = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps}).asm["ptx"]
    return text


def main() -> None:
    found = {}
    for dtype in ("bf16", "fp32"):
        for name, given, extra in (
            ("_summarise_convolution", triton_stem.SUMMING, {}),
            ("_normalise_convolution", triton_stem.NORMALISING, {}),
            ("_add_up_products", triton_stem.BACKWARD, {"twofold": True}),
        ):
            sizes = {"rows": given["rows"], "channels": 64}
            kernel = getattr(triton_stem, name)
            found[f"{name} {dtype}"] = ptx(kernel, dtype, given["num_warps"], sizes | extra)
    block = {"rows": 64, "channels": 64, "has_past": True}
    every = {"slope": 0.0, "has_shortcut": True}
    norms: list[tuple[str, int, dict[str, Any]]] = [
        ("_summarise", triton_norm.SUMMING["num_warps"], {"rows": 64, "channels": 64}),
        ("_normalise", 4, block | every),
        ("_add_up_gradients", triton_norm.SUMMING_MORE["num_warps"], block | every | {"twofold": True, "keep": True}),
        ("_spread_gradients", 4, block | {"slope": 1.0}),
    ]
    for name, num_warps, constants in norms:
        found[f"{name} bf16"] = ptx(getattr(triton_norm, name), "bf16", num_warps, constants)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
