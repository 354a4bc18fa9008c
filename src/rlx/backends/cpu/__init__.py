"""The CPU backend: our own machine code through LLVM, our own threads."""
