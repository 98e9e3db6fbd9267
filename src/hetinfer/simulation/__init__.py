"""The simulated engine: its event loop, its step time, its fit to runs and its capacity."""
