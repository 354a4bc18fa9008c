"""Products that four warps make together, of operands in workgroup memory: `wgmma` of compute capability 9.0, which no
other architecture has. Where there is none, kernels ask `has_warpgroups` and do otherwise. Each has the function of its
own product before it: all of them are as much text as everything else that stands before kernels.

Source: PTX ISA 8.0, asynchronous warpgroup-level matrix instructions.
"""

from __future__ import annotations

from rlx.ir.dtype import DType

WARPGROUPS = """
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool has_warpgroups = true;
#define WGMMA(...) asm volatile(__VA_ARGS__)
#else
constexpr bool has_warpgroups = false;
#define WGMMA(...)
#endif

// Where a matrix begins in workgroup memory, of which each eight rows of 64 bytes follow the eight before by `stride`
// bytes. In every 512 bytes pieces of 16 are swapped: two bits of a piece's number by two of its row's.
// Of a matrix whose rows are steps of the sum, `across` bytes are between neighbouring 64 bytes of its rows.
__device__ __forceinline__ unsigned long long matrix_at(const Piece* first, int stride, int across = 16) {
  const unsigned long long place = (__cvta_generic_to_shared(first) & 0x3ffff) >> 4;
  return place | (unsigned long long)(across >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 2ull << 62;
}

// The same of rows of 128 bytes one behind the other. In every 1024 bytes three bits of a piece's number are swapped.
__device__ __forceinline__ unsigned long long lines_at(const Piece* first) {
  const unsigned long long place = (__cvta_generic_to_shared(first) & 0x3ffff) >> 4;
  return place | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The same matrix so many pieces of 16 bytes further on.
__device__ __forceinline__ unsigned long long matrix_behind(unsigned long long matrix, int pieces) {
  return matrix + pieces;
}

// Makes what a thread has written to workgroup memory ready for such products; a barrier comes between.
__device__ __forceinline__ void show_to_warpgroups() {
  WGMMA("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits for the lanes of a group of four warps, of those that a block has side by side.
__device__ __forceinline__ void group_barrier(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
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

// The same for a left side in registers.
template <int words>
__device__ __forceinline__ void hold(unsigned (&a)[words]) {
#pragma unroll
  for (int i = 0; i < words; i++) asm volatile("" : "+r"(a[i]) :: "memory");
}

__device__ __forceinline__ void begin_products() {
  WGMMA("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Four warps leave registers to others, or take what others left: they have so many from here on.
template <int registers>
__device__ __forceinline__ void leave_registers() {
  WGMMA("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void take_registers() {
  WGMMA("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Waits until at most so many rows of products are under way.
template <int under_way>
__device__ __forceinline__ void await_products() {
  WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(under_way) : "memory");
}
"""
"""What all such products need."""


def warpgroup_product(left: DType, right: DType, width: int) -> tuple[str, str]:
    """The name of a device function, and its text, of which a translation unit may have several: c[64][width] +=
    a[64][k] · b[k][width], with 32 bytes along k, each lane with the elements that PTX says. Of integers it is exact.
    Of floats of 8 bits, whose sums begin anew often, an argument more says whether to add to c.

    width   32, 64, 128, 192 or 256
    """
    count = width // 2
    begin, parameter, argument = "", "", ""
    if left.bits == 8 and left.is_float:
        name, sum_type, constraint, constants = f"warpgroup_mma_{left}", "float", "f", "adds, 1, 1"
        kind = f"k32.f32.{str(left)[2:]}.{str(right)[2:]}"
        begin = f"{{.reg .pred adds; setp.ne.b32 adds, %{count + 2}, 0; "
        parameter, argument = ", int adds", ', "r"(adds)'
    elif left.is_float:
        name, sum_type, constraint, constants = f"warpgroup_mma_{left}", "float", "f", "1, 1, 1, 0, 0"
        kind = f"k16.f32.{left}.{left}"
    else:
        name, sum_type, constraint, constants = f"warpgroup_mma_{left}_{right}", "int", "r", "1"
        kind = "k32.s32." + ".".join(str(dtype).replace("i", "s") for dtype in (left, right))
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+{constraint}"(c[{i // 4}][{i % 4}])' for i in range(count))
    end = "}" if begin else ""
    there = f"HAS_{name}_{width}".upper()
    text = f"""#if defined(WGMMA) && !defined({there})
#define {there}
__device__ __forceinline__ void {name}(
    {sum_type} (&c)[{width // 8}][4], unsigned long long a, unsigned long long b{parameter}) {{
  WGMMA("{begin}wgmma.mma_async.sync.aligned.m64n{width}{kind} {{{sums}}}, %{count}, %{count + 1}, {constants};{end}"
      : {outputs}
      : "l"(a), "l"(b){argument});
}}
#endif
"""
    return name, text


def warpgroup_steps_product(dtype: DType, width: int) -> tuple[str, str]:
    """The same for 16-bit floats, 64 rows of 16 elements on the left that lanes have in registers, and a right side
    of 16 rows of `width` elements each."""
    name, kind = f"warpgroup_steps_{dtype}", f"k16.f32.{dtype}.{dtype}"
    count = width // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    left = ", ".join(f"%{count + i}" for i in range(4))
    outputs = ", ".join(f'"+f"(c[{i // 4}][{i % 4}])' for i in range(count))
    there = f"HAS_{name}_{width}".upper()
    text = f"""#if defined(WGMMA) && !defined({there})
#define {there}
__device__ __forceinline__ void {name}(
    float (&c)[{width // 8}][4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {{
  WGMMA("wgmma.mma_async.sync.aligned.m64n{width}{kind} {{{sums}}}, {{{left}}}, %{count + 4}, 1, 1, 1, 1;"
      : {outputs}
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}}
#endif
"""
    return name, text
