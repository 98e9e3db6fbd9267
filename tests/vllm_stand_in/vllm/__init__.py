"""Stands in for vLLM where a test wants its failures, not its tokens."""
