"""NVIDIA GPUs. So far their kernels are generated (`codegen/simt`, in CUDA C++) and compiled, on any machine."""
