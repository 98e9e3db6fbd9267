"""Fleets of unlike engines: routing between them, simulating them, planning how many of each."""
