"""Models as published tables name them, by their printed sizes (`placer.io.model_shape`), captured."""
