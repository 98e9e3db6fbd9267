"""hetinfer: what RTX 4090 clusters and H100s do for LLM inference, recomputed and questioned."""

__version__ = "0.1.0"
