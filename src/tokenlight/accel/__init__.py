"""Optional speed: CUDA graphs, Triton kernels, and tensors on their way to and from a device."""
