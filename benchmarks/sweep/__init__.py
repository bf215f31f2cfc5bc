"""A search of 60 configurations on one GPU, end to end, beside the same 60 one after another with PEFT."""
