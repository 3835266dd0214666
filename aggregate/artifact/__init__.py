"""What a run ends in: the artifact, its parts and its sentences."""
