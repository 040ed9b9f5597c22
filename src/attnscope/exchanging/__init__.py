"""Other attention in a model: installed, and saved with it."""
