"""What a task asks of generated texts: how they are generated and scored, and which JSON Schemas there may be.

Enters: a part of a spec. Leaves: that part, strictly validated. It must not know the rest of a spec, and computes no score."""
