"""Mathematics on plain tensors: residuals, ranks, stochastic matrices, attention statistics without maps."""
