"""The families of base models that can be trained on, by the model_type of their config.json. How: worker/model/families.py."""

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")
