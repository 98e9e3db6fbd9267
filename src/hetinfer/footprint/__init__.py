"""Energy and carbon of serving tokens: running the hardware, and having it made."""
