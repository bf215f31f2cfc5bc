"""The supported families of base models, by the model_type of their config.json. worker/model/families.py implements them."""

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")
