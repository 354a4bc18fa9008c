"""From kernels to code: for processors (`simd`), for GPUs (`simt`), and what they share (`scalar`)."""
