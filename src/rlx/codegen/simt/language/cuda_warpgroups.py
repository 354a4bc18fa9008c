"""Products that four warps make together, of operands in workgroup memory: `wgmma` of compute capability 9.0, which no
other architecture has. Where there is none, kernels ask `has_warpgroups` and do otherwise.

Source: PTX ISA 8.0, asynchronous warpgroup-level matrix instructions.
"""

from __future__ import annotations

WIDTHS = (64, 128, 192, 256)
"""Columns of a product that there are functions for."""

_HEAD = """
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool has_warpgroups = true;
#define WGMMA(...) asm volatile(__VA_ARGS__)
#else
constexpr bool has_warpgroups = false;
#define WGMMA(...)
#endif

// Where a matrix begins in workgroup memory, of which each eight rows of 64 bytes follow the eight before by `stride`
// bytes. In every 512 bytes pieces of 16 are swapped: two bits of a piece's number by two of its row's.
__device__ __forceinline__ unsigned long long matrix_at(const Piece* first, int stride) {
  const unsigned long long place = __cvta_generic_to_shared(first);
  return (place & 0x3ffff) >> 4 | 1ull << 16 | (unsigned long long)(stride >> 4) << 32 | 2ull << 62;
}

// Makes what a thread has written to workgroup memory ready for such products; a barrier comes between.
__device__ __forceinline__ void show_to_warpgroups() {
  WGMMA("fence.proxy.async.shared::cta;" ::: "memory");
}

// Stands before a row of products and behind them, as nothing else may touch their sums in between.
template <int tiles>
__device__ __forceinline__ void hold(float (&c)[tiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * tiles; i++) asm volatile("" : "+f"(c[i / 4][i % 4]) :: "memory");
}

template <int tiles>
__device__ __forceinline__ void hold(int (&c)[tiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * tiles; i++) asm volatile("" : "+r"(c[i / 4][i % 4]) :: "memory");
}

__device__ __forceinline__ void begin_products() {
  WGMMA("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most so many rows of products are under way.
template <int under_way>
__device__ __forceinline__ void await_products() {
  WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(under_way) : "memory");
}
"""


def warpgroup_products() -> str:
    """The device functions."""
    halves = (_product(dtype, width) for dtype in ("f16", "bf16") for width in WIDTHS)
    of_bytes = (_product_of_bytes(a, b, width) for a in ("u8", "i8") for b in ("u8", "i8") for width in WIDTHS)
    return "\n".join([_HEAD, *halves, *of_bytes])


def _product(dtype: str, width: int) -> str:
    """c[64][width] += a[64][16] · b[16][width], each lane with the elements that PTX says."""
    return _function(dtype, width, "float", "f", f"k16.f32.{dtype}.{dtype}", "1, 1, 1, 0, 0")


def _product_of_bytes(left: str, right: str, width: int) -> str:
    """The same of 32 along k, exact."""
    kinds = ".".join(dtype.replace("i", "s") for dtype in (left, right))
    return _function(f"{left}_{right}", width, "int", "r", f"k32.s32.{kinds}", "1")


def _function(name: str, width: int, sum_type: str, constraint: str, kind: str, constants: str) -> str:
    """A product of an instruction, whose `constants` say that it adds, and how operands lie where it may be told."""
    count = width // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+{constraint}"(c[{i // 4}][{i % 4}])' for i in range(count))
    return f"""__device__ __forceinline__ void warpgroup_mma_{name}(
    {sum_type} (&c)[{width // 8}][4], unsigned long long a, unsigned long long b) {{
  WGMMA("wgmma.mma_async.sync.aligned.m64n{width}{kind} {{{sums}}}, %{count}, %{count + 1}, {constants};"
      : {outputs}
      : "l"(a), "l"(b));
}}
"""
