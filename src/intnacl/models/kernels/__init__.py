"""GPU kernels for the networks, and when they are used."""
