"""Code generators: for processors (`simd`), for GPUs (`simt`), and what both share (`scalar`)."""
