"""The training step, the loop around it, and what keeps a run safe."""
