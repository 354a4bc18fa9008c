"""NVIDIA GPUs. So far kernels are generated (`codegen/simt`, in CUDA C++) and compiled, on any machine; there is no
device."""
